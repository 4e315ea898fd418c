/* Kills a program before the Nth thing it does to the outside world.
 *
 * Loaded by LD_PRELOAD. In programs of the name wanted it counts the calls that
 * change something others can see: files, sockets, devices, processes. The count
 * lies in a file that the test maps as well, and is common to all threads and to
 * children between fork and exec; so whoever makes the call that was chosen, it is
 * the program that dies before it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* By the number that is chosen. */
static const char *const PROGRAMS[] = {"forkyardd", "forkyard-blockd"};

struct control {
    _Atomic uint64_t chosen; /* 0: not counting */
    _Atomic uint64_t count;
    char name[32]; /* of the call it died before */
    _Atomic uint64_t of; /* which program */
    _Atomic uint64_t stops; /* it stands still there, and goes on when it is told to */
};

static struct control *control;
static pid_t program;
static uint64_t number; /* of this program */

static void step(const char *name)
{
    if (!control || atomic_load(&control->of) != number)
        return;
    uint64_t chosen = atomic_load(&control->chosen);
    if (!chosen || atomic_fetch_add(&control->count, 1) + 1 != chosen)
        return;
    strncpy(control->name, name, sizeof control->name - 1);
    uint64_t stops = atomic_load(&control->stops);
    kill(program, stops ? SIGSTOP : SIGKILL);
    if (!stops && getpid() == program)
        for (;;)
            pause();
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(type, name, parameters, ...)             \
    static __typeof__(&name) real_##name;             \
    type name parameters                              \
    {                                                 \
        if (!real_##name)                             \
            real_##name = REAL(name);                 \
        step(#name);                                  \
        return real_##name(__VA_ARGS__);              \
    }

WRAP(ssize_t, writev, (int fd, const struct iovec *v, int n), fd, v, n)
WRAP(ssize_t, pwrite64, (int fd, const void *b, size_t n, off64_t o), fd, b, n, o)
WRAP(ssize_t, sendto, (int fd, const void *b, size_t n, int f, const struct sockaddr *a, socklen_t l), fd, b, n, f, a, l)
WRAP(ssize_t, send, (int fd, const void *b, size_t n, int f), fd, b, n, f)
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *m, int f), fd, m, f)
WRAP(int, connect, (int fd, const struct sockaddr *a, socklen_t l), fd, a, l)
WRAP(int, bind, (int fd, const struct sockaddr *a, socklen_t l), fd, a, l)
WRAP(int, unlink, (const char *p), p)
WRAP(int, unlinkat, (int d, const char *p, int f), d, p, f)
WRAP(int, rmdir, (const char *p), p)
WRAP(int, mkdir, (const char *p, mode_t m), p, m)
WRAP(int, rename, (const char *a, const char *b), a, b)
WRAP(int, chmod, (const char *p, mode_t m), p, m)
WRAP(int, fchmod, (int fd, mode_t m), fd, m)
WRAP(int, chown, (const char *p, uid_t u, gid_t g), p, u, g)
WRAP(int, fchown, (int fd, uid_t u, gid_t g), fd, u, g)
WRAP(int, ftruncate64, (int fd, off64_t n), fd, n)
WRAP(pid_t, fork, (void), )
WRAP(int, execvp, (const char *p, char *const a[]), p, a)

ssize_t write(int fd, const void *b, size_t n)
{
    static __typeof__(&write) real;
    if (!real)
        real = REAL(write);
    /* Not the log; nor an eventfd, by which threads wake each other. */
    if (fd != STDERR_FILENO && n != sizeof(uint64_t))
        step("write");
    return real(fd, b, n);
}

int ioctl(int fd, unsigned long request, ...)
{
    static int (*real)(int, unsigned long, void *);
    if (!real)
        real = (int (*)(int, unsigned long, void *))dlsym(RTLD_NEXT, "ioctl");
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    step("ioctl");
    return real(fd, request, argument);
}

int open64(const char *path, int flags, ...)
{
    static int (*real)(const char *, int, mode_t);
    if (!real)
        real = (int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, "open64");
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    if (flags & O_CREAT)
        step("open");
    return real(path, flags, mode);
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("FORKYARD_STEPS");
    while (number < 2 && strcmp(program_invocation_short_name, PROGRAMS[number]))
        number++;
    if (!path || number == 2)
        return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *map = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return;
    /* First called in a child of many threads, where to look it up may hang. */
    real_execvp = REAL(execvp);
    program = getpid();
    control = map;
}
