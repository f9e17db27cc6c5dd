// futexes calls ROUNDS | threads N | wakes N: makes each kind of futex call so many times, to a known end, and says so;
// or one mismatch in each of so many threads; or so many wakes as fast as it can. It waits for a line on
// standard input first, and once more before it ends.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s, errno %d\n", __LINE__, #what, errno); exit(1); } } while (0)
enum { WAITV = 449, WAKE2 = 454, WAIT2 = 455, REQUEUE2 = 456, U32 = 2, PRIVATE = 128 };

struct waitv { uint64_t val, uaddr; uint32_t flags, reserved; };
static uint32_t *words, turn, alone = 1; // turn: a word of two threads
static int rounds;

static long futex(uint32_t *w, int op, uint32_t v, const struct timespec *t, uint32_t *other, uint32_t three)
{
	return syscall(SYS_futex, w, op, v, t, other, three);
}

// The partner waits on turn by futex(2) until the other has made it so, and back.
static void *partner(void *unused)
{
	for (uint32_t i = 0; i < 2u * rounds; i += 2) {
		while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) != i + 1)
			futex(&turn, FUTEX_WAIT_PRIVATE, i, 0, 0, 0);
		__atomic_store_n(&turn, i + 2, __ATOMIC_RELEASE);
		futex(&turn, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
	}
	return 0;
}

static void nothing(int unused) { }

static void *one(void *unused)
{
	futex(&alone, FUTEX_WAIT_PRIVATE, 2, 0, 0, 0);
	return 0;
}

static void threads(int n)
{
	pthread_attr_t small;
	pthread_t *all = calloc(n, sizeof *all);
	CHECK(!pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, 65536));
	for (int i = 0; i < n; i++)
		if (pthread_create(&all[i], &small, one, 0)) {
			printf("%d of %d\n", i, n);
			exit(0);
		}
	for (int i = 0; i < n; i++)
		pthread_join(all[i], 0);
}

int main(int argc, char **argv)
{
	struct timespec soon = {0, 1000000}, then;
	pthread_t other;
	CHECK(argc == 3);
	rounds = atoi(argv[2]);
	words = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(words != MAP_FAILED);
	puts("ready");
	fflush(stdout);
	CHECK(getchar() == '\n');
	if (!strcmp(argv[1], "threads") || !strcmp(argv[1], "wakes")) {
		if (*argv[1] == 't')
			threads(rounds);
		for (int i = 0; i < rounds && *argv[1] == 'w'; i++)
			futex(&words[0], FUTEX_WAKE, 1, 0, 0, 0);
		puts("done");
		fflush(stdout);
		CHECK(getchar() == '\n');
		return 0;
	}
	struct waitv v[2] = {{0, (uintptr_t)&words[0], U32, 0}, {1, (uintptr_t)&words[1], U32, 0}};
	for (int i = 0; i < rounds; i++) {
		CHECK(futex(&words[0], FUTEX_WAIT, 1, 0, 0, 0) == -1 && errno == EAGAIN);
		CHECK(futex(&alone, FUTEX_WAIT_PRIVATE, 2, 0, 0, 0) == -1 && errno == EAGAIN);
		CHECK(syscall(WAIT2, &words[2], 1ul, 0xffffffffull, U32, 0, 0) == -1 && errno == EAGAIN);
		CHECK(syscall(WAITV, v, 2, 0, 0, 0) == -1 && errno == EAGAIN);
		CHECK(syscall(WAKE2, &words[2], 0xffffffffull, 1, U32) == 0);
		CHECK(futex(&words[2], FUTEX_WAKE, 1, 0, 0, 0) == 0);
		v[1].val = 0;
		CHECK(syscall(REQUEUE2, v, 0, 1, 1) == 0);
		v[1].val = 1;
		CHECK(futex(&words[0], FUTEX_CMP_REQUEUE, 1, (void *)1, &words[1], 0) == 0);
		CHECK(futex(&words[0], FUTEX_WAIT, 7, 0, (uint32_t *)1, 0) == -1); // a mismatch, too
		CHECK(futex((uint32_t *)8, FUTEX_WAIT, 0, 0, 0, 0) == -1 && errno == EFAULT);
	}
	for (int i = 0; i < 5; i++) {
		CHECK(futex(&words[0], FUTEX_WAIT, 0, &soon, 0, 0) == -1 && errno == ETIMEDOUT);
		clock_gettime(CLOCK_MONOTONIC, &then);
		CHECK(syscall(WAIT2, &words[2], 0ul, 0xffffffffull, U32, &then, CLOCK_MONOTONIC) == -1 && errno == ETIMEDOUT);
	}
	// A signal ends this one; there is no handler that has it begin again.
	struct sigaction action = {.sa_handler = nothing};
	CHECK(!sigaction(SIGALRM, &action, 0));
	timer_t timer;
	CHECK(!timer_create(CLOCK_MONOTONIC, 0, &timer));
	struct itimerspec once = {.it_value = {0, 2000000}};
	CHECK(!timer_settime(timer, 0, &once, 0));
	CHECK(futex(&words[0], FUTEX_WAIT, 0, 0, 0, 0) == -1 && errno == EINTR);
	CHECK(!pthread_create(&other, 0, partner, 0));
	long woke = 0, slept = 0, missed = 0;
	for (uint32_t i = 0; i < 2u * rounds; i += 2) {
		__atomic_store_n(&turn, i + 1, __ATOMIC_RELEASE);
		woke += futex(&turn, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
		while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) != i + 2)
			futex(&turn, FUTEX_WAIT_PRIVATE, i + 1, 0, 0, 0) ? missed++ : slept++;
	}
	printf("%ld %ld %ld\n", woke, slept, missed);
	fflush(stdout);
	CHECK(getchar() == '\n');
	return 0;
}
