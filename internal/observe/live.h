// What any thread of the machine does with futexes, from its first call on that the observer
// sees: io_uring's requests as observe.c counts them, and here the futex system calls, by
// outcome, who was woken by whom, and the words. Included by observe.c; nothing of it is left
// where live is 0.
//
// SPDX-License-Identifier: MIT OR GPL-2.0

// Set before loading. nr_futex, nr_restart: futex(2) and restart_syscall(2), whose numbers differ by
// architecture. filtered: only processes in pids, or whose comm, or whose thread's, is in comms.
// own: this process, which is not watched. record: moments of wakes are given out.
volatile const __u32 nr_futex = 0, nr_restart = 0, filtered = 0, own = 0, record = 0, most_threads = 0;

enum { NR_FUTEX_WAITV = 449, NR_FUTEX2_WAKE = 454, NR_FUTEX2_WAIT = 455, NR_FUTEX2_REQUEUE = 456 }; // on every architecture
enum { // uapi/linux/futex.h
	FUTEX_WAIT, FUTEX_WAKE, FUTEX_FD, FUTEX_REQUEUE, FUTEX_CMP_REQUEUE, FUTEX_WAKE_OP, FUTEX_LOCK_PI, FUTEX_UNLOCK_PI,
	FUTEX_TRYLOCK_PI, FUTEX_WAIT_BITSET, FUTEX_WAKE_BITSET, FUTEX_WAIT_REQUEUE_PI, FUTEX_CMP_REQUEUE_PI, FUTEX_LOCK_PI2,
};
enum { FUTEX_PRIVATE = 128, FUTEX_OP_MASK = 127, FUTEX_VECTOR_MAX = 128, RING_SHARED = 0x10 }; // FLAGS_SHARED of kernel/futex/futex.h
enum call { NO_CALL, WAIT1, WAIT2, WAITV, LOCK_PI, WAKE1, WAKE2, WAKE_RING, REQUEUE1, REQUEUE2, ENTER, CALLS };
enum outcome { WOKEN, MISMATCH, TIMEOUT, INTERRUPTED, OTHER, OUTCOMES };
enum { WAITS = LOCK_PI - WAIT1 + 1, WAKES = REQUEUE2 - WAKE1 + 1 };
enum distribution { WAKE_TO_RETURN, HANDLING, REARM, CALL, LOCK = CALL + OUTCOMES };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct pt_regs___x86 {
	unsigned long di, si, dx, r10;
};
struct pt_regs___arm64 {
	__u64 regs[31];
	__u64 orig_x0;
};
struct pt_regs___riscv {
	unsigned long orig_a0, a1, a2, a3;
};
struct atomic {
	int counter;
};
struct signal_struct {
	struct atomic live;
};
struct task_struct {
	int pid, tgid;
	unsigned int policy, rt_priority;
	__u64 start_boottime;
	struct task_struct *group_leader;
	struct signal_struct *signal;
	char comm[16];
};
struct super_block {
	unsigned int s_dev;
};
struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
};
struct file {
	struct inode *f_inode;
};
struct vm_area_struct {
	unsigned long vm_start, vm_pgoff, vm_flags;
	struct file *vm_file;
};
struct io_futex___vector {
	void *uwaitv;
};
#pragma clang attribute pop

struct futex_waitv {
	__u64 val, uaddr;
	__u32 flags, reserved;
};

struct timed {
	__u64 calls, ns;
};

struct locked {
	__u64 calls, ns, over_1us;
};

struct identity {
	__u64 start; // of its process, ns since boot: a pid is used again
	__u32 tid, pid; // as the observer sees them
	__u32 policy, priority;
	char comm[16], process_comm[16];
};

// What a thread is, and did besides its struct thread of the same slot. Only it writes, but for waked_at.
struct doing {
	struct identity who;
	__u32 process; // slot of the first one seen of its process
	__u32 slot;
	__u32 ended, pad0;
	struct timed waits[WAITS][OUTCOMES];
	struct timed wakes[WAKES];
	__u64 woken[WAKES]; // or requeued
	struct locked locks[OUTCOMES]; // futex_q_lock() in waits of system calls
	__u64 ring_woken, ring_other; // CQEs of waits that a wake ended; that ended otherwise
	__u64 unlinked; // returns from a wake whose waker was not seen to wake the thread: it was not asleep
	__u64 armed_waiting, armed; // calls that armed and then waited; that armed only
	__u64 kmalloc_waking, kfree_waking, cache_alloc_waking;
	// What it is in now.
	__u64 entered, address, waked_at, returned, rearm, lock_at, lock_ns;
	__u32 call, shared, waking, woke, arming, failed, vector, has_lock;
	__u32 restart, pad; // the kind of wait that restart_syscall(2) goes on with
};

struct word_key {
	__u32 slot, shared;
	__u64 address;
};

// What one thread did with one word.
struct word {
	__u64 arms, failed, ring_woken;
	__u64 waits[OUTCOMES];
	__u64 wakes, woken;
	__u64 vectors, ring_wakes; // of the waits and wakes: of vectors that it is the first word of; by requests
	__u64 inode, offset; // of a mapping that others may share; inode 0 of another one, and where it could not be told
	__u32 device, tries;
};

struct bar {
	__u32 owner; // a slot
	__u16 distribution, bucket;
};

struct tally {
	__u64 threads; // slots given out
	__u64 lost_calls, lost_words, lost_values, lost_moments; // for which a map had no room
};

struct moment {
	__u64 at, address;
	__u32 slot, shared;
};

struct comm {
	char text[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct doing);
} doings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} leaders SEC(".maps"); // tgid -> slot of the first thread seen of that process

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct word_key);
	__type(value, struct word);
} words SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct bar);
	__type(value, __u64);
} bars SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tally);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} pids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct comm);
	__type(value, __u32);
} comms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} moments SEC(".maps");

static __always_inline struct tally *all(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&totals, &zero);
}

static __always_inline __u64 argument_0(void *regs)
{
	struct pt_regs___x86 *x = regs;
	struct pt_regs___arm64 *a = regs;
	struct pt_regs___riscv *v = regs;
	if (bpf_core_field_exists(x->di))
		return BPF_CORE_READ(x, di);
	if (bpf_core_field_exists(a->orig_x0))
		return BPF_CORE_READ(a, orig_x0);
	if (bpf_core_field_exists(v->orig_a0))
		return BPF_CORE_READ(v, orig_a0);
	return 0;
}

#define ARGUMENT(n, x86, riscv)                                                                  \
	static __always_inline __u64 argument_##n(void *regs)                                    \
	{                                                                                        \
		struct pt_regs___x86 *x = regs;                                                  \
		struct pt_regs___arm64 *a = regs;                                                \
		struct pt_regs___riscv *v = regs;                                                \
		if (bpf_core_field_exists(x->di))                                                \
			return BPF_CORE_READ(x, x86);                                            \
		if (bpf_core_field_exists(a->orig_x0))                                           \
			return BPF_CORE_READ(a, regs[n]);                                        \
		if (bpf_core_field_exists(v->orig_a0))                                           \
			return BPF_CORE_READ(v, riscv);                                          \
		return 0;                                                                        \
	}
ARGUMENT(1, si, a1)
ARGUMENT(3, r10, a3)

static __always_inline __u32 bucket(__u64 v);

// value counts one in a histogram: of the thread's process, of the thread where the scenario that is written needs it.
static __always_inline void value(struct doing *l, __u32 distribution, __u64 v)
{
	__u64 one = 1, *n;
	struct bar key = {.owner = distribution == HANDLING ? l->slot : l->process, .distribution = distribution, .bucket = bucket(v)};
	n = bpf_map_lookup_elem(&bars, &key);
	if (!n) {
		if (!bpf_map_update_elem(&bars, &key, &one, BPF_NOEXIST))
			return;
		n = bpf_map_lookup_elem(&bars, &key); // another CPU's was first
	}
	struct tally *t;
	if (n)
		__sync_fetch_and_add(n, 1);
	else if ((t = all()))
		__sync_fetch_and_add(&t->lost_values, 1);
}

enum { VM_SHARED = 8, FIND_TRIES = 8 };
volatile const __u32 page_shift = 12; // set before loading

struct place {
	__u64 address, inode, offset;
	__u32 device, found;
};

static long placed(struct task_struct *task, struct vm_area_struct *vma, struct place *p)
{
	p->found = 1;
	if (!(BPF_CORE_READ(vma, vm_flags) & VM_SHARED) || !BPF_CORE_READ(vma, vm_file))
		return 0;
	p->inode = BPF_CORE_READ(vma, vm_file, f_inode, i_ino);
	p->device = BPF_CORE_READ(vma, vm_file, f_inode, i_sb, s_dev);
	p->offset = p->address - BPF_CORE_READ(vma, vm_start) + (BPF_CORE_READ(vma, vm_pgoff) << page_shift);
	return 0;
}

// find looks which file a shared word is of, so that it has one name for all who map it. The map of a
// process may be locked just now: then the next call tries again.
static __always_inline void find(struct word *w, __u64 address)
{
	struct place p = {.address = address};
	struct task_struct *task = bpf_get_current_task_btf();
	w->tries++;
	if (bpf_find_vma(task, address, placed, &p, 0) || !p.found)
		return;
	w->tries = FIND_TRIES;
	w->inode = p.inode;
	w->device = p.device;
	w->offset = p.offset;
}

// word returns the counts of the current thread and a word, made where there are none.
static __always_inline struct word *word(__u32 slot, __u64 address, __u32 shared)
{
	struct word_key key = {.slot = slot, .shared = shared, .address = address};
	struct word none = {}, *w = bpf_map_lookup_elem(&words, &key);
	struct tally *t;
	if (!w) {
		if (bpf_map_update_elem(&words, &key, &none, BPF_NOEXIST) && (t = all()))
			__sync_fetch_and_add(&t->lost_words, 1);
		w = bpf_map_lookup_elem(&words, &key);
	}
	if (w && shared && w->tries < FIND_TRIES)
		find(w, address);
	return w;
}

static __always_inline void moment(__u32 slot, __u64 at, __u64 address, __u32 shared)
{
	struct moment m = {.at = at, .address = address, .slot = slot, .shared = shared};
	struct tally *t;
	if (record && bpf_ringbuf_output(&moments, &m, sizeof m, BPF_RB_NO_WAKEUP) && (t = all()))
		__sync_fetch_and_add(&t->lost_moments, 1);
}

static __always_inline int chosen(struct identity *who)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct comm c = {}, leader = {};
	who->pid = id >> 32;
	who->tid = id;
	if (pidns_inode) {
		struct bpf_pidns_info ns;
		if (bpf_get_ns_current_pid_tgid(pidns_device, pidns_inode, &ns, sizeof ns))
			return 0;
		who->pid = ns.tgid;
		who->tid = ns.pid;
	}
	if (who->pid == own)
		return 0;
	BPF_CORE_READ_INTO(&leader.text, task, group_leader, comm);
	bpf_get_current_comm(&c.text, sizeof c.text);
	if (filtered && !bpf_map_lookup_elem(&pids, &who->pid) && !bpf_map_lookup_elem(&comms, &c) && !bpf_map_lookup_elem(&comms, &leader))
		return 0;
	__builtin_memcpy(who->comm, c.text, sizeof who->comm);
	__builtin_memcpy(who->process_comm, leader.text, sizeof who->process_comm);
	who->start = BPF_CORE_READ(task, group_leader, start_boottime);
	who->policy = BPF_CORE_READ(task, policy);
	who->priority = BPF_CORE_READ(task, rt_priority);
	return 1;
}

// join is self, but for a thread that is seen first and is to be watched.
static __always_inline struct thread *join(__u32 *slot)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 tid = id, tgid = id >> 32, *at = bpf_map_lookup_elem(&slots, &tid), *first;
	struct identity who = {};
	struct doing *l;
	struct tally *t = all();
	if (at) {
		*slot = *at;
		return bpf_map_lookup_elem(&threads, at);
	}
	if (!t || !chosen(&who))
		return 0;
	__u32 new = t->threads < most_threads ? __sync_fetch_and_add(&t->threads, 1) : most_threads;
	l = bpf_map_lookup_elem(&doings, &new);
	if (new >= most_threads || !l) {
		__sync_fetch_and_add(&t->lost_calls, 1);
		return 0;
	}
	bpf_map_update_elem(&leaders, &tgid, &new, BPF_NOEXIST);
	first = bpf_map_lookup_elem(&leaders, &tgid);
	l->who = who;
	l->slot = new;
	l->process = first ? *first : new;
	if (bpf_map_update_elem(&slots, &tid, &new, BPF_ANY)) {
		__sync_fetch_and_add(&t->lost_calls, 1);
		return 0;
	}
	*slot = new;
	return bpf_map_lookup_elem(&threads, &new);
}

static __always_inline struct doing *live_of(__u32 slot) { return bpf_map_lookup_elem(&doings, &slot); }

static __always_inline void begin(struct doing *l, __u32 call)
{
	l->call = call;
	l->entered = bpf_ktime_get_ns();
	l->waked_at = 0;
	l->lock_ns = l->has_lock = l->woke = 0;
}

static __always_inline struct thread *live_enter(__u32 *slot)
{
	struct thread *t = join(slot);
	struct doing *l;
	if (t && (l = live_of(*slot))) {
		begin(l, ENTER);
		l->waking = l->arming = l->failed = 0;
	}
	return t;
}

static __always_inline void handled(struct doing *l)
{
	if (l->returned && l->entered > l->returned)
		value(l, HANDLING, l->entered - l->returned);
	l->returned = 0;
}

// live_call is the entry of a system call that is not io_uring_enter(2).
static __always_inline int live_call(void *regs, __u64 nr)
{
	__u32 slot, call, shared;
	__u64 flags, restart = 0;
	if (nr == nr_futex) {
		flags = argument_1(regs);
		switch (flags & FUTEX_OP_MASK) {
		case FUTEX_WAIT:
		case FUTEX_WAIT_BITSET:
		case FUTEX_WAIT_REQUEUE_PI:
			call = WAIT1;
			break;
		case FUTEX_LOCK_PI:
		case FUTEX_LOCK_PI2:
			call = LOCK_PI;
			break;
		case FUTEX_WAKE:
		case FUTEX_WAKE_BITSET:
		case FUTEX_WAKE_OP:
		case FUTEX_UNLOCK_PI:
			call = WAKE1;
			break;
		case FUTEX_REQUEUE:
		case FUTEX_CMP_REQUEUE:
		case FUTEX_CMP_REQUEUE_PI:
			call = REQUEUE1;
			break;
		default:
			return 0;
		}
	} else if (nr == NR_FUTEX2_WAIT || nr == NR_FUTEX2_WAKE) {
		call = nr == NR_FUTEX2_WAIT ? WAIT2 : WAKE2;
		flags = argument_3(regs);
	} else if (nr == NR_FUTEX_WAITV || nr == NR_FUTEX2_REQUEUE) {
		call = nr == NR_FUTEX_WAITV ? WAITV : REQUEUE2;
		flags = FUTEX_PRIVATE;
	} else if (nr == nr_restart) {
		restart = 1;
		call = flags = 0;
	} else {
		return 0;
	}
	struct thread *t = restart ? self(&slot) : join(&slot);
	struct doing *l;
	if (!t || !(l = live_of(slot)))
		return 0;
	if (restart) {
		if (l->restart)
			begin(l, l->restart); // on the word that it waited on before
		return 0;
	}
	begin(l, call);
	shared = !(flags & FUTEX_PRIVATE);
	l->address = argument_0(regs);
	l->shared = shared;
	l->vector = 0;
	if (call == WAITV || call == REQUEUE2) {
		struct futex_waitv w = {};
		bpf_probe_read_user(&w, sizeof w, (void *)l->address);
		l->vector = call == WAITV ? argument_1(regs) : 0;
		l->address = w.uaddr; // the first one's stands for all
		l->shared = !(w.flags & FUTEX_PRIVATE);
	}
	l->waking = call >= WAKE1;
	if (!l->waking)
		handled(l);
	else
		moment(slot, l->entered, l->address, l->shared);
	return 0;
}

static __always_inline __u32 outcome(__s64 ret)
{
	if (ret >= 0)
		return WOKEN;
	if (ret == AGAIN)
		return MISMATCH;
	if (ret == -110) // ETIMEDOUT
		return TIMEOUT;
	if (ret == -4 || (ret <= -512 && ret >= -516)) // EINTR, and what include/linux/errno.h has the kernel begin again
		return INTERRUPTED;
	return OTHER;
}

static __always_inline void back(struct doing *l, __u64 now)
{
	if (l->waked_at)
		value(l, WAKE_TO_RETURN, now - l->waked_at);
	else
		l->unlinked++;
	l->returned = l->rearm = now;
	l->waked_at = 0;
}

static __always_inline int live_return(__s64 ret)
{
	__u32 slot;
	struct thread *t = self(&slot);
	struct doing *l;
	if (!t || !(l = live_of(slot)) || !l->call)
		return 0;
	__u64 now = bpf_ktime_get_ns(), took = now - l->entered;
	__u32 call = l->call, how = outcome(ret);
	l->call = l->waking = 0;
	if (call == ENTER) {
		if (l->woke)
			back(l, now);
		return 0;
	}
	struct word *w = word(slot, l->address, l->shared);
	__u32 i = call - WAKE1;
	if (i < WAKES) {
		__u64 n = ret > 0 ? ret : 0;
		l->wakes[i].calls++;
		l->wakes[i].ns += took;
		l->woken[i] += n;
		if (w) {
			w->wakes++;
			w->woken += n;
		}
		return 0;
	}
	i = call - WAIT1;
	if (i >= WAITS || how >= OUTCOMES)
		return 0;
	l->waits[i][how].calls++;
	l->waits[i][how].ns += took;
	if (w) {
		w->waits[how]++;
		w->vectors += l->vector > 1;
	}
	value(l, CALL + how, took);
	if (l->has_lock) {
		l->locks[how].calls++;
		l->locks[how].ns += l->lock_ns;
		if (l->lock_ns > 1000)
			l->locks[how].over_1us++;
		value(l, LOCK + how, l->lock_ns);
	}
	l->restart = ret == -516 ? call : 0; // ERESTART_RESTARTBLOCK
	if (how == WOKEN)
		back(l, now);
	return 0;
}

static __always_inline __u32 ring_shared(struct io_kiocb *req)
{
	struct io_futex *io = (struct io_futex *)req;
	if (!bpf_core_field_exists(io->futex_flags))
		return 1;
	return (BPF_CORE_READ(io, futex_flags) & RING_SHARED) != 0;
}

// ring_word returns the word of a wait or a wake, of a vector the first one, which stands for all.
static __always_inline __u64 ring_word(struct io_kiocb *req, __u8 opcode)
{
	struct io_futex *io = (struct io_futex *)req;
	struct io_futex___vector *v = (struct io_futex___vector *)req;
	if (opcode != RING_WAITV)
		return bpf_core_field_exists(io->uaddr) ? (__u64)BPF_CORE_READ(io, uaddr) : 0;
	struct futex_waitv w = {};
	if (bpf_core_field_exists(v->uwaitv))
		bpf_probe_read_user(&w, sizeof w, BPF_CORE_READ(v, uwaitv));
	else
		bpf_probe_read_user(&w, sizeof w, BPF_CORE_READ(io, uaddr));
	return w.uaddr;
}

static __always_inline void live_submit(__u32 slot, struct io_kiocb *req, __u8 opcode)
{
	struct doing *l = live_of(slot);
	struct word *w;
	if (!l || opcode < RING_WAIT || opcode > RING_WAITV)
		return;
	__u64 address = ring_word(req, opcode);
	__u32 shared = ring_shared(req);
	if (opcode == RING_WAKE) {
		l->waking = 1;
		moment(slot, l->entered ? l->entered : bpf_ktime_get_ns(), address, shared);
		return;
	}
	handled(l);
	l->arming = 1;
	if ((w = word(slot, address, shared))) {
		w->arms++;
		w->vectors += opcode == RING_WAITV;
	}
}

// live_armed ends the part of io_uring_enter(2) that submits.
static __always_inline void live_armed(__u32 slot, int waits)
{
	struct doing *l = live_of(slot);
	if (!l)
		return;
	if (l->arming && !l->failed && l->rearm) {
		value(l, REARM, bpf_ktime_get_ns() - l->rearm);
		l->rearm = 0;
	}
	if (l->arming && !l->failed && waits)
		l->armed_waiting++;
	else if (l->arming && !l->failed)
		l->armed++;
	l->arming = l->failed = 0;
}

static __always_inline void live_complete(__u32 slot, struct io_kiocb *req, __u8 opcode, __s32 res)
{
	struct doing *l = live_of(slot);
	struct word *w;
	if (!l)
		return;
	w = word(slot, ring_word(req, opcode), ring_shared(req));
	if (opcode == RING_WAKE) {
		__u64 n = res > 0 ? res : 0;
		l->wakes[WAKE_RING - WAKE1].calls++;
		l->woken[WAKE_RING - WAKE1] += n;
		l->waking = 0;
		if (w) {
			w->ring_wakes++;
			w->wakes++;
			w->woken += n;
		}
		return;
	}
	if (res == AGAIN) {
		l->failed = 1;
		if (w)
			w->failed++;
	} else if (res < 0) {
		l->ring_other++;
	} else {
		l->ring_woken++;
		if (w)
			w->ring_woken++;
		// Outside of a call the CQE is there as soon as the thread runs on.
		if (l->call == ENTER)
			l->woke = 1;
		else
			back(l, bpf_ktime_get_ns());
	}
}

// live_allocation takes what is allocated or freed within a call that wakes.
static __always_inline int live_allocation(struct thread *t, struct site *s, __u64 size, __u64 room, __u64 gfp)
{
	struct doing *l = live_of(s->slot);
	if (!l || !l->waking)
		return 0;
	if (s->operation == OP_KMALLOC)
		l->kmalloc_waking++;
	else if (s->operation == OP_KFREE)
		l->kfree_waking++;
	else
		l->cache_alloc_waking++;
	s->operation += OPERATIONS; // place() is the caller's
	s->size = size;
	s->room = room;
	s->gfp = gfp;
	return 1;
}

static __always_inline void live_lock(__u32 slot)
{
	struct doing *l = live_of(slot);
	if (l)
		l->lock_at = bpf_ktime_get_ns();
}

SEC("fexit/futex_q_lock")
int live_locked(__u64 *ctx)
{
	__u32 slot;
	struct doing *l;
	if (!self(&slot) || !(l = live_of(slot)) || !l->lock_at)
		return 0;
	l->lock_ns += bpf_ktime_get_ns() - l->lock_at;
	l->lock_at = 0;
	l->has_lock = 1;
	return 0;
}

// Who wakes a thread that sleeps, in its own context.
SEC("tp_btf/sched_waking")
int live_waking(__u64 *ctx)
{
	__u32 slot, *at, tid;
	struct doing *l, *sleeper;
	if (!self(&slot) || !(l = live_of(slot)) || !l->waking || !l->entered)
		return 0;
	tid = BPF_CORE_READ((struct task_struct *)ctx[0], pid);
	at = bpf_map_lookup_elem(&slots, &tid);
	if (at && (sleeper = bpf_map_lookup_elem(&doings, at)))
		sleeper->waked_at = l->entered;
	return 0;
}

static __always_inline void forget(struct task_struct *task, __u32 tid, int whole, int exits)
{
	__u32 *at = bpf_map_lookup_elem(&slots, &tid), tgid = BPF_CORE_READ(task, tgid);
	struct doing *l;
	if (at && (l = bpf_map_lookup_elem(&doings, at))) {
		l->ended = 1;
		l->who.policy = BPF_CORE_READ(task, policy);
		l->who.priority = BPF_CORE_READ(task, rt_priority);
		if (exits) // after an exec it is the new program's
			bpf_get_current_comm(l->who.comm, sizeof l->who.comm);
	}
	bpf_map_delete_elem(&slots, &tid);
	if (whole)
		bpf_map_delete_elem(&leaders, &tgid);
}

SEC("tp_btf/sched_process_exit")
int live_exit(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	forget(task, BPF_CORE_READ(task, pid), BPF_CORE_READ(task, signal, live.counter) == 0, 1);
	return 0;
}

// Another program is another process, though its number stays.
SEC("tp_btf/sched_process_exec")
int live_exec(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	forget(task, (__u32)ctx[1], 1, 0);
	forget(task, BPF_CORE_READ(task, pid), 1, 0);
	return 0;
}
