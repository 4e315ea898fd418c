/* Loaded into QEMU: has its guest's memory be a file of a tmpfs, mapped shared,
 * so that it is told from QEMU's own. It goes to swap as anonymous memory does.
 *
 * The file is where MEMORY is, and as large as the guest's memory: the bench puts
 * it there before each VM is run, in a mount namespace of its own. QEMU first
 * reserves addresses and then maps memory over them: it is that which is caught. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MEMORY "/dev/zero"

static int file = -1;
static size_t size;
static char *guest;

__attribute__((constructor)) static void find(void)
{
    struct stat about;
    int fd = open(MEMORY, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &about) || !S_ISREG(about.st_mode)) {
        close(fd);
        return;
    }
    file = fd;
    size = about.st_size;
}

void *mmap(void *at, size_t length, int access, int flags, int fd, off_t offset)
{
    int wanted = MAP_FIXED | MAP_ANONYMOUS;
    int is_guest = file >= 0 && length == size && (flags & wanted) == wanted && (access & PROT_WRITE);
    if (is_guest) {
        flags = MAP_FIXED | MAP_SHARED;
        fd = file;
        offset = 0;
    }
    void *mapped = (void *)syscall(SYS_mmap, at, length, access, flags, fd, offset);
    if (is_guest && mapped != MAP_FAILED) {
        guest = mapped;
        close(file);
        file = -1;
    }
    return mapped;
}

void *mmap64(void *at, size_t length, int access, int flags, int fd, off_t offset)
{
    return mmap(at, length, access, flags, fd, offset);
}

static int is_guests(const char *at)
{
    return guest && at >= guest && at < guest + size;
}

/* Huge pages would be read and written whole. What the guest reports as free is dropped from the file as well: it is
 * neither written out nor read back. */
int madvise(void *at, size_t length, int advice)
{
    if (guest && at == guest && (advice == MADV_HUGEPAGE || advice == MADV_MERGEABLE))
        return 0;
    if (is_guests(at) && advice == MADV_DONTNEED)
        advice = MADV_REMOVE;
    return syscall(SYS_madvise, at, length, advice);
}
