/* The job of "Friendly Virtual Machines", section 5.1: take 1 MB of memory, read
 * it full from a file, compute, write it to another file, free it; in many
 * threads, over and over.
 *
 *   job THREADS SECONDS PERIOD FOLDER STATUS
 *
 * Prints, before the threads begin all at once, every PERIOD seconds from then on,
 * and at the end, after SECONDS or once there is a file FOLDER/end: the seconds since then, the jobs that all of them
 * have done, and of STATUS, what the agent says, the virtual clock time in ms, how
 * many threads may run and for what part of the time; or 0. To have it shown by the
 * agent itself takes another process, which comes late where it matters. Each thread
 * has two files in FOLDER. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 300, CHUNK = 1 << 20, STACK = 64 << 10 };

/* What the two processes share. */
static struct shared {
    atomic_long done;
    atomic_int go;
} *shared;
static const char *folder, *status;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void sleep_until(double when)
{
    struct timespec t = { (time_t)when, (long)((when - (time_t)when) * 1e9) };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0) == EINTR)
        ;
}

static void fail(const char *what)
{
    perror(what);
    _exit(1);
}

static int file(long number, const char *kind, int flags)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s.%ld", folder, kind, number);
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd < 0)
        fail(path);
    return fd;
}

static void whole(int fd, char *at, int writes)
{
    for (size_t had = 0; had < CHUNK;) {
        ssize_t more = writes ? pwrite(fd, at + had, CHUNK - had, had) : pread(fd, at + had, CHUNK - had, had);
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            fail(writes ? "write" : "read");
        had += more;
    }
}

static void *run(void *numbered)
{
    long number = (long)numbered;
    int from = file(number, "in", O_RDONLY), to = file(number, "out", O_WRONLY | O_CREAT);
    while (!atomic_load(&shared->go))
        syscall(SYS_futex, &shared->go, FUTEX_WAIT, 0, 0, 0, 0);
    for (;;) {
        char *chunk = malloc(CHUNK);
        if (!chunk)
            fail("malloc");
        whole(from, chunk, 0);
        unsigned sum = 1;
        for (size_t i = 0; i < CHUNK; i++) {
            sum = sum * 31 + (unsigned char)chunk[i];
            chunk[i] = (char)sum;
        }
        whole(to, chunk, 1);
        free(chunk);
        atomic_fetch_add(&shared->done, 1);
    }
    return 0;
}

static int told_to_end(void)
{
    char path[256];
    snprintf(path, sizeof path, "%s/end", folder);
    return access(path, F_OK) == 0;
}

/* A number of the agent's, by its name in JSON. */
static double said(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? atof(at + strlen(name)) : 0;
}

/* By a process of its own, called "report": it is told to whoever adapts to leave it
 * alone, for it is no part of the load. What it prints holds for when it is printed. */
static void report(double seconds, double period)
{
    static char text[16 << 10];
    double begun = now(), at = 0;
    for (;;) {
        sleep_until(begun + at);
        long had = atomic_load(&shared->done);
        double reached = now() - begun;
        int fd = open(status, O_RDONLY | O_CLOEXEC);
        ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
        text[length > 0 ? length : 0] = 0;
        if (fd >= 0)
            close(fd);
        printf("%.3f %ld %.3f %.0f %.3f\n", reached, had, said(text, "\"vct_ms\":"), said(text, "\"allowed\":"), said(text, "\"duty\":"));
        fflush(stdout);
        if (at == 0) {
            atomic_store(&shared->go, 1);
            syscall(SYS_futex, &shared->go, FUTEX_WAKE, MOST, 0, 0, 0);
        }
        if (at >= seconds || told_to_end())
            return;
        at = at + period < seconds ? at + period : seconds;
    }
}

int main(int argc, char **argv)
{
    int threads = argc == 6 ? atoi(argv[1]) : 0;
    double seconds = argc == 6 ? atof(argv[2]) : 0, period = argc == 6 ? atof(argv[3]) : 0;
    if (threads < 1 || threads > MOST || !(seconds > 0) || !(period > 0)) {
        fprintf(stderr, "usage: job THREADS SECONDS PERIOD FOLDER STATUS\n");
        return 2;
    }
    folder = argv[4];
    status = argv[5];
    char *chunk = calloc(1, CHUNK);
    if (!chunk)
        fail("calloc");
    for (long n = 0; n < threads; n++) {
        int fd = file(n, "in", O_WRONLY | O_CREAT);
        whole(fd, chunk, 1);
        close(fd);
    }
    free(chunk);
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        fail("mmap");
    int ready[2];
    if (pipe(ready))
        fail("pipe");
    pid_t worker = fork();
    if (worker < 0)
        fail("fork");
    if (worker > 0) {
        prctl(PR_SET_NAME, "report");
        close(ready[1]);
        char all;
        if (read(ready[0], &all, 1) != 1)
            return 1;
        report(seconds, period);
        /* The threads go on for ever: their process is ended. */
        kill(worker, SIGKILL);
        waitpid(worker, 0, 0);
        return 0;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    for (long n = 0; n < threads; n++) {
        pthread_t thread;
        int error = pthread_create(&thread, &attributes, run, (void *)n);
        if (error) {
            errno = error;
            fail("pthread_create");
        }
    }
    if (write(ready[1], "", 1) != 1)
        fail("write");
    for (;;)
        pause();
}
