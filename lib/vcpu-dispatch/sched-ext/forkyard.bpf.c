/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Runs the threads it was given where it is told to, and decides nothing.
 *
 *   dispatcher --take, forget (a thread), decide (everybody's turn)--> threads, slots
 *   kernel: enqueue(thread) --> the thread's own queue
 *           dispatch(CPU)   <-- the queue of whoever has the CPU's slot
 *
 * A thread's turn is a CPU, or WAITS: it is kept in its queue, or FREE: it slept
 * when it was last looked at, so if it wakes it runs for BRIEF anywhere, until the
 * dispatcher has noticed. A decision is of everybody, and may be told again at any
 * time: whoever does not run where it should is put right each time.
 *
 * It has threads of the class SCHED_EXT alone (SCX_OPS_SWITCH_PARTIAL), and those are
 * such as the dispatcher makes so. The kernel takes them all back to the usual class
 * when the dispatcher ends, however it ends, or when one of them has not run for 30 s.
 *
 * Made for Linux 6.12. Types are declared as far as they are used; the loader finds
 * each field in the kernel's own by its name.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

/* As the dispatcher has them: lib/vcpu-dispatch/src/sched_ext.rs. */
#define FREE (-1)
#define WAITS (-2)
/* Decisions in one call. */
#define MOST 256

#define NOWHERE (-1)
#define CPUS 1024
#define BRIEF (2500 * 1000ULL)
/* The queue of those who are free; those of threads have the threads' numbers. */
#define AWAKE (1ULL << 32)

/* The kernel's numbers: enum scx_public_consts, scx_dsq_id_flags, scx_ent_flags,
 * scx_enq_flags, scx_kick_flags, scx_ops_flags, errno. */
#define SLICE_INF (~0ULL)
#define DSQ_LOCAL (1ULL << 63 | 2)
#define TASK_QUEUED 1
#define ENQ_WAKEUP 1
#define KICK_PREEMPT 2
#define OPS_ENQ_LAST (1 << 1)
#define OPS_SWITCH_PARTIAL (1 << 3)
#define EBUSY 16
#define EEXIST 17

#define KERNELS __attribute__((preserve_access_index))

struct sched_ext_entity {
	__u32 flags;
	__u64 slice;
} KERNELS;

struct task_struct {
	int pid;
	struct sched_ext_entity scx;
} KERNELS;

enum scx_exit_kind {
	SCX_EXIT_NONE,
};

struct scx_exit_info {
	enum scx_exit_kind kind;
} KERNELS;

struct scx_cpu_release_args;

struct sched_ext_ops {
	__s32 (*select_cpu)(struct task_struct *p, __s32 before, __u64 flags);
	void (*enqueue)(struct task_struct *p, __u64 flags);
	void (*dispatch)(__s32 cpu, struct task_struct *last);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, _Bool runnable);
	void (*cpu_release)(__s32 cpu, struct scx_cpu_release_args *args);
	__s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	__u64 flags;
	char name[128];
};

extern __s32 scx_bpf_create_dsq(__u64 queue, __s32 node) __ksym;
extern void scx_bpf_destroy_dsq(__u64 queue) __ksym;
extern __s32 scx_bpf_dsq_nr_queued(__u64 queue) __ksym;
extern __s32 scx_bpf_select_cpu_dfl(struct task_struct *p, __s32 before, __u64 flags,
				    _Bool *idle) __ksym;
extern void scx_bpf_dispatch(struct task_struct *p, __u64 queue, __u64 slice,
			     __u64 flags) __ksym;
extern _Bool scx_bpf_consume(__u64 queue) __ksym;
extern __u32 scx_bpf_reenqueue_local(void) __ksym;
extern void scx_bpf_kick_cpu(__s32 cpu, __u64 flags) __ksym;
extern __s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;

struct thread {
	__s32 turn;
	/* The CPU it runs on, or NOWHERE. */
	__s32 on;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct thread);
} threads SEC(".maps");

/* Whose turn it is on each CPU; 0 if nobody's. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CPUS);
	__type(key, __u32);
	__type(value, __u32);
} slots SEC(".maps");

/* What the dispatcher tells `decide`. */
struct decision {
	__u32 tid;
	__s32 turn;
	__s32 before;
};

struct decisions {
	__u32 count;
	struct decision of[MOST];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct decisions);
} told SEC(".maps");

/* Why the kernel has ended it; 0 while it has not. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ended SEC(".maps");

static struct thread *find(struct task_struct *p)
{
	__u32 tid = p->pid;

	return bpf_map_lookup_elem(&threads, &tid);
}

static __u32 *slot(__s32 cpu)
{
	__u32 key = cpu;

	return bpf_map_lookup_elem(&slots, &key);
}

SEC("struct_ops/select_cpu")
__s32 BPF_PROG(select_cpu, struct task_struct *p, __s32 before, __u64 flags)
{
	struct thread *thread = find(p);
	_Bool idle = 0;
	__s32 cpu;

	if (thread && thread->turn >= 0)
		return thread->turn;
	if (thread && thread->turn == WAITS)
		return before;
	cpu = scx_bpf_select_cpu_dfl(p, before, flags, &idle);
	if (idle)
		scx_bpf_dispatch(p, DSQ_LOCAL, BRIEF, 0);
	return cpu;
}

SEC("struct_ops/enqueue")
void BPF_PROG(enqueue, struct task_struct *p, __u64 flags)
{
	struct thread *thread = find(p);

	/* One that nobody has told of is of the class by somebody else's will. */
	if (!thread || thread->turn == FREE) {
		scx_bpf_dispatch(p, AWAKE, BRIEF, flags);
		scx_bpf_kick_cpu(scx_bpf_task_cpu(p), flags & ENQ_WAKEUP ? KICK_PREEMPT : 0);
		return;
	}
	scx_bpf_dispatch(p, (__u32)p->pid, SLICE_INF, flags);
	if (thread->turn >= 0)
		scx_bpf_kick_cpu(thread->turn, 0);
}

static _Bool keeps(struct task_struct *last, __u64 slice)
{
	if (!last || !(last->scx.flags & TASK_QUEUED))
		return 0;
	last->scx.slice = slice;
	return 1;
}

SEC("struct_ops/dispatch")
void BPF_PROG(dispatch, __s32 cpu, struct task_struct *last)
{
	__u32 *turn = slot(cpu), tid = turn ? *turn : 0;
	struct thread *thread = last ? find(last) : 0;
	_Bool was_free = last && (!thread || thread->turn == FREE);

	/* Those who woke go first, but not twice in a row. */
	if (!was_free && scx_bpf_consume(AWAKE))
		return;
	if (tid && last && (__u32)last->pid == tid && keeps(last, SLICE_INF))
		return;
	if (tid && scx_bpf_consume(tid))
		return;
	if (was_free && !scx_bpf_consume(AWAKE))
		keeps(last, BRIEF);
}

SEC("struct_ops/running")
void BPF_PROG(running, struct task_struct *p)
{
	struct thread *thread = find(p);

	if (thread)
		thread->on = scx_bpf_task_cpu(p);
}

SEC("struct_ops/stopping")
void BPF_PROG(stopping, struct task_struct *p, _Bool runnable)
{
	struct thread *thread = find(p);

	if (thread)
		thread->on = NOWHERE;
}

/* Another class takes the CPU: whoever was to run on it may be wanted elsewhere
 * before it gives it back. */
SEC("struct_ops/cpu_release")
void BPF_PROG(cpu_release, __s32 cpu, struct scx_cpu_release_args *args)
{
	scx_bpf_reenqueue_local();
}

SEC("struct_ops.s/init")
__s32 BPF_PROG(init)
{
	return scx_bpf_create_dsq(AWAKE, -1);
}

SEC("struct_ops/exit")
void BPF_PROG(leave, struct scx_exit_info *info)
{
	__u32 zero = 0, *why = bpf_map_lookup_elem(&ended, &zero);

	if (why)
		*why = info->kind ? info->kind : 1;
}

SEC(".struct_ops.link")
struct sched_ext_ops forkyard = {
	.select_cpu = (void *)select_cpu,
	.enqueue = (void *)enqueue,
	.dispatch = (void *)dispatch,
	.running = (void *)running,
	.stopping = (void *)stopping,
	.cpu_release = (void *)cpu_release,
	.init = (void *)init,
	.exit = (void *)leave,
	.flags = OPS_ENQ_LAST | OPS_SWITCH_PARTIAL,
	.name = "forkyard",
};

struct who {
	__u32 tid;
};

/* A thread that is about to be of the class. */
SEC("syscall")
int take(struct who *who)
{
	struct thread thread = { .turn = FREE, .on = NOWHERE };
	__u32 tid = who->tid;
	int error = scx_bpf_create_dsq(tid, -1);

	if (error && error != -EEXIST)
		return error;
	return bpf_map_update_elem(&threads, &tid, &thread, BPF_ANY);
}

/* One that is so no more. */
SEC("syscall")
int forget(struct who *who)
{
	__u32 tid = who->tid;
	__s32 queued = scx_bpf_dsq_nr_queued(tid);

	if (queued > 0)
		return -EBUSY;
	bpf_map_delete_elem(&threads, &tid);
	if (queued == 0)
		scx_bpf_destroy_dsq(tid);
	return 0;
}

static struct decision *decision(__u32 place)
{
	__u32 zero = 0;
	struct decisions *all = bpf_map_lookup_elem(&told, &zero);

	return all && place < MOST && place < all->count ? &all->of[place] : 0;
}

static long write_down(__u32 place, void *unused)
{
	struct decision *to = decision(place);
	struct thread *thread;
	__u32 *is;

	if (!to)
		return 1;
	thread = bpf_map_lookup_elem(&threads, &to->tid);
	if (!thread)
		return 0;
	to->before = thread->turn;
	thread->turn = to->turn;
	if (to->before >= 0 && to->before != to->turn) {
		is = slot(to->before);
		if (is && *is == to->tid)
			*is = 0;
	}
	if (to->turn >= 0) {
		is = slot(to->turn);
		if (is)
			*is = to->tid;
	}
	return 0;
}

static long make_so(__u32 place, void *unused)
{
	struct decision *to = decision(place);
	struct thread *thread;

	if (!to)
		return 1;
	thread = bpf_map_lookup_elem(&threads, &to->tid);
	if (!thread || to->turn == FREE || thread->on == to->turn)
		return 0;
	if (thread->on >= 0)
		scx_bpf_kick_cpu(thread->on, KICK_PREEMPT);
	if (to->turn >= 0)
		scx_bpf_kick_cpu(to->turn, to->turn == to->before ? 0 : KICK_PREEMPT);
	return 0;
}

/* Everybody's turn, as `told`: nobody is kicked before all of it is written down. Says
 * why the kernel has ended it, or 0. */
SEC("syscall")
int decide(struct who *unused)
{
	__u32 zero = 0, *why = bpf_map_lookup_elem(&ended, &zero);

	bpf_loop(MOST, write_down, 0, 0);
	bpf_loop(MOST, make_so, 0, 0);
	return why ? *why : 0;
}
