//go:build ignore

// What the kernel does when the program's threads arm futex waits, counted by thread
// in the kernel. Only BTF tracepoints, but for io_futex_wait's entry and exit, which
// are attached where the kernel allows it.
//
// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

char __license[] SEC("license") = "Dual MIT/GPL";

// Set before loading. exact: fentry and fexit of io_futex_wait are attached. pidns: the
// program's pid namespace, device and inode, or 0 for the first one.
// live: threads are watched as they come (live.h), not those that were given.
volatile const __u32 exact = 0, live = 0;
volatile const __u64 pidns_device = 0, pidns_inode = 0;

enum { RING_WAIT = 51, RING_WAKE = 52, RING_WAITV = 53 }; // uapi/linux/io_uring.h
enum { NR_IO_URING_ENTER = 426 };				      // on every architecture
enum { NOT_DONE = -529 };	// -EIOCBQUEUED: io_futex_wait() queued a waiter
enum { AGAIN = -11 };
enum { DISTANCES = 17, SUB = 32, BUCKETS = 33 * SUB };
enum { NOTHING = 0xffffffff };	// a channel's word before the first message
enum operation { OP_KMALLOC, OP_KFREE, OP_CACHE_ALLOC, OPERATIONS }; // + OPERATIONS: within a call that wakes

// Of the kernel's structs, the fields that are read.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct io_cqe {
	__s32 res;
};
struct io_ring_ctx {
	unsigned int cached_sq_head, cached_cq_tail; // SQEs taken and CQEs given so far
};
struct io_kiocb {
	__u8 opcode;
	__u64 flags;
	struct io_cqe cqe;
	struct io_ring_ctx *ctx;
};
struct io_futex { // lies over a request's first field (io_kiocb_to_cmd)
	void *uaddr;
	unsigned long futex_val;
	__u32 futex_flags;
	unsigned int futex_nr;
};
struct io_uring_cqe {
	__s32 res;
};
struct kmem_cache {
	unsigned int object_size;
};
#pragma clang attribute pop

struct site {
	__u32 slot, operation;
	__u64 call_site;
	__u64 size, room; // bytes asked for and given
	__u64 gfp;
};

// One thread's counts since it was watched. Only that thread writes them.
struct thread {
	__u64 arms, failed;
	__u64 kmalloc, kfree, cache_alloc; // within the arming of a wait
	__u64 within_6us, over_40us;	   // of the failures, from syscall entry
	__u64 unread;			   // failures whose distance could not be told
	__u64 unplaced;			   // allocations and frees for which sites had no room
	__u64 behind[DISTANCES];
	__u64 flags[3];			   // request flags seen on completed WAIT, WAKE, WAITV, by OR
	__u64 wrap;			   // where its channels' queue indexes start again, 0 if they differ
	__u64 bucket_locks;		   // entries of futex_q_lock(), where they are counted
	__u64 entered;			   // ns: when io_uring_enter was entered
	__u32 arming;
	__u32 softirq; // a softirq runs on top of the thread: what it allocates is not the thread's
	__u32 latency[BUCKETS];
	struct site last; // the last kmalloc since a request was submitted, or io_uring_enter entered
	__u32 has_last, pad;
	__u64 submitted, submitted_ring, completed, completed_req; // the events counted last, see COPIES
};

struct failure {
	__u64 at;
	__u32 armed, word, readable, pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} slots SEC(".maps"); // thread -> index into threads

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct site);
	__type(value, __u64);
} sites SEC(".maps");

// What arming allocated, so that kfree, which is not told, knows the size.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u64);
} allocated SEC(".maps");

// Waits that io_futex_wait() returned from without queueing, by request, until their CQE.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, struct failure);
} failures SEC(".maps");

static __always_inline struct thread *self(__u32 *slot)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();
	if (pidns_inode && !live) {
		struct bpf_pidns_info ns;
		if (bpf_get_ns_current_pid_tgid(pidns_device, pidns_inode, &ns, sizeof ns))
			return 0;
		tid = ns.pid;
	}
	__u32 *at = bpf_map_lookup_elem(&slots, &tid);
	if (!at)
		return 0;
	*slot = *at;
	return bpf_map_lookup_elem(&threads, at);
}

// A kernel that may be preempted inside a program skips the program for a thread that
// preempts another one there (prog->active in kernel/trace/bpf_trace.c). So those that
// count arms and failures are attached several times, and the first copy that is not
// busy counts: every request has a number of its own.
#define COPIES(section, name, call) \
	SEC(section) int name##_1(__u64 *ctx) { return call; } \
	SEC(section) int name##_2(__u64 *ctx) { return call; } \
	SEC(section) int name##_3(__u64 *ctx) { return call; } \
	SEC(section) int name##_4(__u64 *ctx) { return call; }

// An argument that is a pointer to nothing in particular: verifiers of before Linux 6.13 or
// so do not let a program read one of type const void * itself.
static __always_inline __u64 argument(__u64 *at)
{
	__u64 v = 0;
	bpf_probe_read_kernel(&v, sizeof v, at);
	return v;
}

#include "live.h"

static __always_inline int is_wait(__u8 opcode) { return opcode == RING_WAIT || opcode == RING_WAITV; }

SEC("tp_btf/sys_enter")
int on_sys_enter(__u64 *ctx)
{
	__u32 slot;
	if (ctx[1] != NR_IO_URING_ENTER)
		return live ? live_call((void *)ctx[0], ctx[1]) : 0;
	struct thread *t = live ? live_enter(&slot) : self(&slot);
	if (t) {
		t->entered = bpf_ktime_get_ns();
		t->has_last = 0;
		t->softirq = 0; // should its end have been missed
	}
	return 0;
}

static __always_inline int armed(int waits)
{
	__u32 slot;
	struct thread *t = self(&slot);
	if (t) {
		if (live)
			live_armed(slot, waits);
		t->arming = 0;
		t->entered = 0;
	}
	return 0;
}

SEC("tp_btf/sys_exit")
int on_sys_exit(__u64 *ctx)
{
	armed(0);
	return live ? live_return((__s64)ctx[1]) : 0;
}

// What follows in the same call is waiting, not arming.
SEC("tp_btf/io_uring_cqring_wait")
int on_cqring_wait(__u64 *ctx) { return armed(1); }

SEC("tp_btf/softirq_entry")
int on_softirq_entry(__u64 *ctx)
{
	__u32 slot;
	struct thread *t = self(&slot);
	if (t)
		t->softirq = 1;
	return 0;
}

SEC("tp_btf/softirq_exit")
int on_softirq_exit(__u64 *ctx)
{
	__u32 slot;
	struct thread *t = self(&slot);
	if (t)
		t->softirq = 0;
	return 0;
}

static __always_inline void place(struct thread *t, struct site *s)
{
	__u64 one = 1, *n = bpf_map_lookup_elem(&sites, s);
	if (n)
		__sync_fetch_and_add(n, 1);
	else if (bpf_map_update_elem(&sites, s, &one, BPF_NOEXIST))
		t->unplaced++;
}

// A request is prepared before it is traced: a vector's copy was allocated already, right
// before.
static __always_inline int submit(struct io_kiocb *req)
{
	__u32 slot;
	struct thread *t = live ? join(&slot) : self(&slot);
	if (!t)
		return 0;
	__u64 number = 1 + (__u64)BPF_CORE_READ(req, ctx, cached_sq_head);
	__u64 ring = (__u64)BPF_CORE_READ(req, ctx);
	if (number == t->submitted && ring == t->submitted_ring)
		return 0;
	t->submitted = number;
	t->submitted_ring = ring;
	__u8 opcode = BPF_CORE_READ(req, opcode);
	if (is_wait(opcode))
		t->arms++;
	if (live)
		live_submit(slot, req, opcode);
	if (opcode == RING_WAITV && t->has_last) {
		struct site s = t->last;
		t->kmalloc++;
		place(t, &s);
	}
	t->has_last = 0;
	t->arming = !exact && is_wait(opcode);
	return 0;
}

COPIES("tp_btf/io_uring_submit_req", on_submit, submit((struct io_kiocb *)ctx[0]))

static __always_inline void look(struct failure *f, struct io_kiocb *req)
{
	struct io_futex *io = (struct io_futex *)req;
	f->readable = 0;
	if (!bpf_core_field_exists(io->futex_val) || BPF_CORE_READ(req, opcode) != RING_WAIT)
		return;
	f->armed = (__u32)BPF_CORE_READ(io, futex_val);
	f->readable = !bpf_probe_read_user(&f->word, sizeof f->word, BPF_CORE_READ(io, uaddr));
}

static __always_inline void distance(struct thread *t, struct failure *f)
{
	__u64 from = f->armed == NOTHING ? 0 : f->armed, to = f->word == NOTHING ? 0 : f->word, wrap = t->wrap;
	if (live) { // a word of any program counts to 2^32, or is none that counts
		from = f->armed;
		to = f->word;
		wrap = to < from && (__u32)(f->word - f->armed) >> 31 ? 0 : 1ULL << 32;
	}
	if (!f->readable || (to < from && !wrap)) {
		t->unread++;
		return;
	}
	__u64 d = to >= from ? to - from : wrap - from + to;
	t->behind[d < DISTANCES - 1 ? d : DISTANCES - 1]++;
}

// bucket: 32 to each power of two, exact below 32 ns.
static __always_inline __u32 bucket(__u64 v)
{
	__u32 e = 0;
	__u64 x = v;
	if (x >> 32) { e += 32; x >>= 32; }
	if (x >> 16) { e += 16; x >>= 16; }
	if (x >> 8) { e += 8; x >>= 8; }
	if (x >> 4) { e += 4; x >>= 4; }
	if (x >> 2) { e += 2; x >>= 2; }
	if (x >> 1) e += 1;
	if (e < 5)
		return (__u32)v;
	__u32 i = (e - 4) * SUB + (__u32)((v >> (e - 5)) & (SUB - 1));
	return i < BUCKETS ? i : BUCKETS - 1;
}

static __always_inline int complete(struct io_ring_ctx *ring, struct io_kiocb *req, __s32 res)
{
	__u32 slot;
	__u64 key = (__u64)req;
	struct thread *t = self(&slot);
	if (!t || !req)
		return 0;
	__u8 opcode = BPF_CORE_READ(req, opcode);
	__u32 kind = (__u32)opcode - RING_WAIT;
	if (kind >= sizeof t->flags / sizeof *t->flags)
		return 0;
	__u64 number = 1 + (__u64)BPF_CORE_READ(ring, cached_cq_tail);
	if (number == t->completed && key == t->completed_req)
		return 0;
	t->completed = number;
	t->completed_req = key;
	__u64 flags = BPF_CORE_READ(req, flags);
	if (bpf_core_field_size(req->flags) == 4)
		flags = (__u32)flags;
	t->flags[kind] |= flags;
	if (live)
		live_complete(slot, req, opcode, res);
	if (!is_wait(opcode))
		return 0;
	// What is freed for a failed arm from here on belongs to it still.
	t->arming = res == AGAIN;
	struct failure *noted = bpf_map_lookup_elem(&failures, &key), f = {};
	if (noted) {
		f = *noted;
		bpf_map_delete_elem(&failures, &key);
	}
	if (res != AGAIN)
		return 0;
	t->failed++;
	if (!f.at) {
		f.at = bpf_ktime_get_ns();
		look(&f, req);
	}
	distance(t, &f);
	if (!t->entered) // by a thread of the kernel's, as IORING_SETUP_SQPOLL makes one
		return 0;
	__u64 took = f.at - t->entered;
	if (took <= 6000)
		t->within_6us++;
	if (took > 40000)
		t->over_40us++;
	__u32 b = bucket(took);
	if (b < BUCKETS)
		t->latency[b]++;
	return 0;
}

// Since Linux 6.15 (io_uring: pass the CQE to the tracepoint) the third argument is the
// CQE; before, user_data, and res was the fourth. The program that fits is loaded.
COPIES("tp_btf/io_uring_complete", on_complete_cqe,
       complete((struct io_ring_ctx *)ctx[0], (struct io_kiocb *)ctx[1], BPF_CORE_READ((struct io_uring_cqe *)ctx[2], res)))
COPIES("tp_btf/io_uring_complete", on_complete_res,
       complete((struct io_ring_ctx *)ctx[0], (struct io_kiocb *)ctx[1], (__s32)ctx[3]))

static __always_inline int allocation(__u32 operation, __u64 call_site, __u64 at, __u64 size, __u64 room, __u64 gfp)
{
	struct site s = {};
	struct thread *t = self(&s.slot);
	if (!t || t->softirq)
		return 0;
	s.operation = operation;
	s.call_site = call_site;
	if (live && live_allocation(t, &s, size, room, gfp)) {
		place(t, &s);
		return 0;
	}
	if (!t->entered)
		return 0;
	if (!t->arming) {
		if (operation == OP_KMALLOC) {
			s.size = size;
			s.room = room;
			s.gfp = gfp;
			t->last = s;
			t->has_last = 1;
			bpf_map_update_elem(&allocated, &at, &size, BPF_ANY);
		}
		return 0;
	}
	if (operation == OP_KFREE) {
		__u64 *known = bpf_map_lookup_elem(&allocated, &at);
		t->kfree++;
		if (known) {
			s.size = *known;
			bpf_map_delete_elem(&allocated, &at);
		}
	} else {
		if (operation == OP_KMALLOC)
			t->kmalloc++;
		else
			t->cache_alloc++;
		s.size = size;
		s.room = room;
		s.gfp = gfp;
		bpf_map_update_elem(&allocated, &at, &size, BPF_ANY);
	}
	place(t, &s);
	return 0;
}

SEC("tp_btf/kmalloc")
int on_kmalloc(__u64 *ctx) { return allocation(OP_KMALLOC, ctx[0], argument(&ctx[1]), ctx[2], ctx[3], (__u32)ctx[4]); }

SEC("tp_btf/kmem_cache_alloc")
int on_cache_alloc(__u64 *ctx)
{
	__u64 size = BPF_CORE_READ((struct kmem_cache *)ctx[2], object_size);
	return allocation(OP_CACHE_ALLOC, ctx[0], argument(&ctx[1]), size, size, (__u32)ctx[3]);
}

SEC("tp_btf/kfree")
int on_kfree(__u64 *ctx)
{
	__u64 at = argument(&ctx[1]);
	if (!at) // kfree(NULL) is traced too
		return 0;
	return allocation(OP_KFREE, ctx[0], at, 0, 0, 0);
}

static __always_inline int enter(void)
{
	__u32 slot;
	struct thread *t = self(&slot);
	if (t)
		t->arming = 1;
	return 0;
}

static __always_inline int leave(struct io_kiocb *req, __s32 ret)
{
	__u32 slot;
	__u64 key = (__u64)req;
	struct thread *t = self(&slot);
	if (!t)
		return 0;
	t->arming = 0;
	if (ret == NOT_DONE)
		return 0;
	// Whether it failed with -EAGAIN its CQE will say; what is returned here differs by version.
	struct failure f = {.at = bpf_ktime_get_ns()};
	look(&f, req);
	bpf_map_update_elem(&failures, &key, &f, BPF_ANY);
	return 0;
}

SEC("fentry/io_futex_wait")
int on_wait_entry(__u64 *ctx) { return enter(); }

SEC("fexit/io_futex_wait")
int on_wait_exit(__u64 *ctx) { return leave((struct io_kiocb *)ctx[0], (__s32)ctx[2]); }

SEC("fentry/io_futexv_wait")
int on_waitv_entry(__u64 *ctx) { return enter(); }

SEC("fexit/io_futexv_wait")
int on_waitv_exit(__u64 *ctx) { return leave((struct io_kiocb *)ctx[0], (__s32)ctx[2]); }

// futex_q_lock() takes the lock of a futex hash bucket.
SEC("fentry/futex_q_lock")
int on_bucket_lock(__u64 *ctx)
{
	__u32 slot;
	struct thread *t = self(&slot);
	if (t) {
		t->bucket_locks++;
		if (live)
			live_lock(slot);
	}
	return 0;
}
