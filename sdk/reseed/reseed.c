/*
 * libforkyard-reseed.so: has OpenSSL notice that its VM was forked.
 *
 * OpenSSL (1.1.1 and 3) seeds its generators anew when getpid() says something
 * else than before: that is how it notices fork(2). A clone of a VM has the same
 * process ids as its parent, so nobody tells it. This library, preloaded, answers
 * getpid() calls out of libcrypto, and no others, with a number that is also
 * different in every clone. The generators then draw on the kernel's, which the
 * agent has reseeded; all of them, in every thread, before their next byte.
 *
 * Covers programs that use the shared libcrypto. One that is linked statically
 * brings its own copy, which calls no getpid() that could be preloaded.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, KNOWN = 4 };

/* 16 bytes that no two VMs share; the agent changes them in a clone. */
static const volatile uint32_t *epoch;

/* libcrypto's code, once it has called: it is never unloaded. */
static struct range {
	uintptr_t start, end;
} known[KNOWN];

struct question {
	uintptr_t address;
	struct range found;
};

__attribute__((constructor)) static void look(void)
{
	int file = open("/opt/forkyard/epoch", O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return;
	void *page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, 0);
	if (page != MAP_FAILED)
		epoch = page;
	close(file);
}

static int is_libcrypto(const char *path)
{
	const char *slash = strrchr(path, '/');
	return !strncmp(slash ? slash + 1 : path, "libcrypto.so", strlen("libcrypto.so"));
}

static int ask(struct dl_phdr_info *object, size_t size, void *data)
{
	struct question *question = data;
	(void)size;
	for (int n = 0; n < object->dlpi_phnum; n++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[n];
		uintptr_t start = object->dlpi_addr + part->p_vaddr;
		if (part->p_type != PT_LOAD || question->address - start >= part->p_memsz)
			continue;
		if (is_libcrypto(object->dlpi_name))
			question->found = (struct range){ start, start + part->p_memsz };
		return 1;
	}
	return 0;
}

static int from_libcrypto(uintptr_t address)
{
	for (int n = 0; n < KNOWN; n++) {
		/* The end is written last, and first seen. */
		uintptr_t end = __atomic_load_n(&known[n].end, __ATOMIC_ACQUIRE);
		if (address < end && address >= known[n].start)
			return 1;
	}
	struct question question = { .address = address };
	dl_iterate_phdr(ask, &question);
	if (!question.found.end)
		return 0;
	for (int n = 0; n < KNOWN; n++) {
		uintptr_t nobody = 0;
		if (__atomic_compare_exchange_n(&known[n].start, &nobody, question.found.start, 0, __ATOMIC_ACQ_REL,
						__ATOMIC_RELAXED)) {
			__atomic_store_n(&known[n].end, question.found.end, __ATOMIC_RELEASE);
			break;
		}
	}
	return 1;
}

pid_t getpid(void)
{
	pid_t pid = (pid_t)syscall(SYS_getpid);
	if (!epoch || !from_libcrypto((uintptr_t)__builtin_return_address(0)))
		return pid;
	/* Never negative, never 0, and another for another process. */
	return (pid_t)(((uint32_t)pid + *epoch) & 0x7fffffff) | 1 << 30;
}
