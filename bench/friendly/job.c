/* The job of "Friendly Virtual Machines", section 5.1: take 1 MB of memory, read
 * it full from a file, compute, write it to another file, free it; in many
 * threads, over and over.
 *
 *   job THREADS SETTLE SECONDS FOLDER
 *
 * Prints the jobs a second that all threads did in SECONDS, after SETTLE seconds
 * for whoever adapts to settle. Each thread has two files in FOLDER. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 300, CHUNK = 1 << 20 };

static atomic_long done;
static const char *folder;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
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
        atomic_fetch_add(&done, 1);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int threads = argc == 5 ? atoi(argv[1]) : 0;
    if (threads < 1 || threads > MOST || atoi(argv[2]) < 0 || atoi(argv[3]) < 1) {
        fprintf(stderr, "usage: job THREADS SETTLE SECONDS FOLDER\n");
        return 2;
    }
    folder = argv[4];
    char *chunk = calloc(1, CHUNK);
    if (!chunk)
        fail("calloc");
    for (long n = 0; n < threads; n++) {
        int fd = file(n, "in", O_WRONLY | O_CREAT);
        whole(fd, chunk, 1);
        close(fd);
    }
    free(chunk);
    for (long n = 0; n < threads; n++) {
        pthread_t thread;
        int error = pthread_create(&thread, 0, run, (void *)n);
        if (error) {
            errno = error;
            fail("pthread_create");
        }
    }
    sleep(atoi(argv[2]));
    double begun = now();
    long before = atomic_load(&done);
    sleep(atoi(argv[3]));
    printf("%.4f\n", (atomic_load(&done) - before) / (now() - begun));
    fflush(stdout);
    /* The threads go on for ever: the process ends. */
    _exit(0);
}
