/* Threads that work, then wait for each other: rounds in so many seconds.
 *
 *   barrier speed                                loops of work in a microsecond
 *   barrier THREADS LOOPS SPIN_NS SECONDS        SPIN_NS: -1 spins for ever
 *   barrier answers LOOPS PERIOD_US SECONDS      a request of so much work in each period
 *
 * Work is counted in loops, so that a thread that does not run does not get its
 * work done. Prints the rounds a second; of answers, the median and the 99th
 * percentile of the time from when one was due to when it was ready, in us. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, SAMPLES = 50, LOOPS = 100000 };

static atomic_int arrived, phase;
static atomic_long rounds;
static long loops, spin;
static int threads;

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void work(long n)
{
    for (volatile long i = 0; i < n; i++)
        ;
}

static void meet(void)
{
    int mine = atomic_load(&phase);
    if (atomic_fetch_add(&arrived, 1) == threads - 1) {
        atomic_store(&arrived, 0);
        atomic_fetch_add(&rounds, 1);
        atomic_store(&phase, mine + 1);
        if (spin >= 0)
            syscall(SYS_futex, &phase, FUTEX_WAKE_PRIVATE, threads, 0, 0, 0);
        return;
    }
    long until = spin <= 0 ? 0 : now() + spin;
    while (atomic_load(&phase) == mine)
        if (spin == 0 || (spin > 0 && now() >= until))
            syscall(SYS_futex, &phase, FUTEX_WAIT_PRIVATE, mine, 0, 0, 0);
}

static void *run(void *unused)
{
    for (;;) {
        work(loops);
        meet();
    }
    return unused;
}

/* The shortest time is the one that nobody interrupted. */
static long speed(void)
{
    long best = 0;
    for (int i = 0; i < SAMPLES; i++) {
        long begun = now();
        work(LOOPS);
        long took = now() - begun;
        if (!best || took < best)
            best = took;
    }
    return LOOPS * 1000L / best;
}

static int by_size(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

/* Requests come whether or not the last was answered. */
static int answers(long work_loops, long period, long seconds)
{
    long count = seconds * 1000000 / period, due = now();
    long *took = calloc(count, sizeof *took);
    if (count < 1 || !took) {
        fprintf(stderr, "barrier: no periods in that time\n");
        return 1;
    }
    for (long i = 0; i < count; i++) {
        due += period * 1000;
        struct timespec at = {due / 1000000000, due % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, 0);
        work(work_loops);
        took[i] = (now() - due) / 1000;
    }
    qsort(took, count, sizeof *took, by_size);
    printf("%ld %ld\n", took[count / 2], took[count * 99 / 100]);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "speed")) {
        printf("%ld\n", speed());
        return 0;
    }
    if (argc == 5 && !strcmp(argv[1], "answers"))
        return answers(atol(argv[2]), atol(argv[3]), atol(argv[4]));
    if (argc != 5 || atoi(argv[1]) < 1 || atoi(argv[1]) > MOST) {
        fprintf(stderr, "usage: barrier speed | barrier THREADS LOOPS SPIN_NS SECONDS | barrier answers LOOPS PERIOD_US SECONDS\n");
        return 2;
    }
    threads = atoi(argv[1]);
    loops = atol(argv[2]);
    spin = atol(argv[3]);
    long begun = now();
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, run, 0)) {
            perror("pthread_create");
            return 1;
        }
    }
    sleep(atoi(argv[4]));
    printf("%.1f\n", atomic_load(&rounds) / ((now() - begun) / 1e9));
    fflush(stdout);
    /* The threads go on for ever: the process ends. */
    _exit(0);
}
