package eventloop

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"aossim/channel"
	"aossim/internal/linux"
	"aossim/internal/linux/linuxtest"
)

// publishes runs a publisher in one window of a length, on a thread of its own, and returns
// what it counted and the messages that a reader found.
func publishes(t *testing.T, c PublisherConfig, length, delay time.Duration) (*Stats, []channel.Message) {
	t.Helper()
	config := channel.Config{MaxSize: 64, QueueSize: 1024, Publishers: 1}
	mem := linuxtest.Map(t, 64+config.Size())
	ch, err := channel.Create(mem[64:], config)
	if err != nil {
		t.Fatal(err)
	}
	pub, _, err := ch.Claim(0, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	var times [2]atomic.Uint64
	windows := Windows{Current: linux.Uint32At(mem, 0), Start: &times[0], End: &times[1]}
	c.Outs, c.Active = []Out{{Channel: pub, Word: ch.Word(), Futex: true}}, []bool{true}
	var progress Progress
	for _, p := range []**atomic.Uint64{&progress.Count, &progress.Done, &progress.Broke, &progress.Publishing} {
		*p = new(atomic.Uint64)
	}
	stats, reader := &Stats{}, ch.Reader()
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p, err := NewPublisher(c, &windows, progress, []*Stats{stats})
		if err == nil {
			err = p.Run()
		}
		if err == nil {
			err = p.Close()
		}
		ended <- err
	}()
	// A start that has been already makes it late.
	start := linux.Now() + int64(20*time.Millisecond) - int64(delay)
	times[0].Store(uint64(start))
	times[1].Store(uint64(start + int64(length)))
	windows.Current.Store(1)
	linux.FutexWake(windows.Current, linux.WakeAll, linux.MatchAny, linux.Shared)
	for end := time.Now().Add(10 * time.Second); progress.Done.Load() != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the publisher is not done within 10 s")
		}
	}
	windows.Current.Store(Stop)
	linux.FutexWake(windows.Current, linux.WakeAll, linux.MatchAny, linux.Shared)
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the publisher does not end")
	}
	if n := progress.Publishing.Load(); n%2 != 0 || int64(n) != 2*stats.Published {
		t.Errorf("Publishing is %d after %d messages", n, stats.Published)
	}
	var found []channel.Message
	incoming := channel.NewIncoming(ch)
	for word := ch.Word().Load(); reader.Pending(word) > 0; {
		if outcome, _ := reader.Read(reader.Pending(word), incoming); outcome == channel.Read {
			if !incoming.Whole() {
				t.Error("a message is not whole")
			}
			found = append(found, incoming.Message())
		}
	}
	return stats, found
}

// TestPublisher: messages are published in order, none before its time, each at the time
// that its arrival gives it, by either way to wake.
func TestPublisher(t *testing.T) {
	for name, c := range map[string]PublisherConfig{
		"periodic": {Rate: 500, Arrival: Periodic}, "poisson": {Rate: 500, Arrival: Poisson, Seed: 7}, "burst": {Rate: 500, Arrival: Bursts, Burst: 5},
		"by io_uring": {Rate: 500, Arrival: Periodic, URing: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, found := publishes(t, c, 400*time.Millisecond, 0)
			if s.Published != int64(len(found)) || s.Published == 0 || s.Published+s.MissedDeadlines < 100 || s.Published > 400 {
				t.Fatalf("published %d, missed %d, found %d; 200 were due", s.Published, s.MissedDeadlines, len(found))
			}
			for i, m := range found {
				if m.Sequence != uint64(i) || m.Published < m.Scheduled {
					t.Fatalf("message %d: %+v", i, m)
				}
				if i == 0 {
					continue
				}
				gap := m.Scheduled - found[i-1].Scheduled
				switch {
				case name == "burst" && gap != 0 && gap != 10_000_000, name != "burst" && name != "poisson" && gap != 2_000_000, gap < 0:
					t.Fatalf("message %d is scheduled %d ns after the one before", i, gap)
				}
			}
		})
	}
}

// TestMissedDeadlines: of messages that cannot be published in time each is published or
// counted as missed, and those published after the next one was due are both.
func TestMissedDeadlines(t *testing.T) {
	// It starts 500 ms late with 1 kHz: what was due until then is published at once, each
	// after its next was due.
	s, found := publishes(t, PublisherConfig{Rate: 1000, Arrival: Periodic}, time.Second, 500*time.Millisecond)
	if s.MissedDeadlines < 400 || s.Published < 900 || int64(len(found)) != s.Published {
		t.Errorf("published %d, missed %d; 480 of 1,000 were due before it began", s.Published, s.MissedDeadlines)
	}
	// Its end has been, too: nothing is published, and all of it missed.
	s, found = publishes(t, PublisherConfig{Rate: 1000, Arrival: Periodic}, 100*time.Millisecond, 300*time.Millisecond)
	if s.Published != 0 || s.MissedDeadlines < 99 || s.MissedDeadlines > 101 || len(found) != 0 {
		t.Errorf("published %d, missed %d; the window had been", s.Published, s.MissedDeadlines)
	}
}
