/*
 * Programs that keep a record of themselves while their VM is forked.
 *
 *   witness clock             print the time, in nanoseconds since 1970
 *   witness draw FILE         draw random numbers for ever, a line each
 *   witness name FILE         note this VM's name, over and over, until a
 *                             while after it has changed
 *   witness spin FILE         count, and keep the count in FILE
 *   witness sweep FILE        write all of 24 MiB of memory, round after round,
 *                             until the name changes; then note in FILE whether
 *                             it is as it was at one instant
 *   witness pair LOG DISK     write the same to LOG, in memory, and then to
 *                             DISK, past every cache, until the name changes
 *   witness compare LOG DISK  print how many pairs there are; fails if DISK
 *                             is not what LOG says
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, AFTER = 50, SWEPT = 6144 };

struct entry {
	uint64_t number;
	unsigned char random[24];
};

static void die(const char *what)
{
	fprintf(stderr, "witness: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int open_or_die(const char *path, int flags)
{
	int fd = open(path, flags, 0644);
	if (fd < 0)
		die(path);
	return fd;
}

static void random_bytes(void *to, size_t count)
{
	if (getrandom(to, count, 0) != (ssize_t)count)
		die("getrandom");
}

static void name_of(char name[65])
{
	if (gethostname(name, 65))
		die("gethostname");
}

static void clock_now(void)
{
	struct timespec now;
	if (clock_gettime(CLOCK_REALTIME, &now))
		die("clock_gettime");
	printf("%lld\n", (long long)now.tv_sec * 1000000000 + now.tv_nsec);
}

static void draw(const char *path)
{
	int file = open_or_die(path, O_WRONLY | O_CREAT | O_APPEND);
	for (;;) {
		uint64_t random[2];
		char line[40];
		random_bytes(random, sizeof random);
		int length = snprintf(line, sizeof line, "%016llx%016llx\n", (unsigned long long)random[0],
				      (unsigned long long)random[1]);
		if (write(file, line, length) != length)
			die(path);
		usleep(2000);
	}
}

static void note_name(const char *path)
{
	int file = open_or_die(path, O_WRONLY | O_CREAT | O_APPEND);
	char first[65], name[66];
	name_of(first);
	for (int after = 0; after < AFTER;) {
		name_of(name);
		after += strcmp(name, first) != 0;
		size_t length = strlen(name);
		name[length] = '\n';
		if (write(file, name, length + 1) != (ssize_t)length + 1)
			die(path);
	}
}

static void spin(const char *path)
{
	int file = open_or_die(path, O_WRONLY | O_CREAT);
	for (uint64_t count = 1;; count++) {
		char line[24];
		if (count % 100000)
			continue;
		int length = snprintf(line, sizeof line, "%llu\n", (unsigned long long)count);
		if (pwrite(file, line, length, 0) != length)
			die(path);
	}
}

static int swept(uint64_t *memory, uint64_t round, size_t at)
{
	for (size_t i = 0; i < SWEPT; i++)
		if (memory[i * BLOCK / sizeof *memory] != (i <= at ? round : round - 1))
			return 0;
	return 1;
}

static void sweep(const char *path)
{
	uint64_t *memory = aligned_alloc(BLOCK, SWEPT * BLOCK);
	char first[65], name[65];
	int file = open_or_die(path, O_WRONLY | O_CREAT | O_TRUNC);
	if (!memory)
		die("memory");
	memset(memory, 0, SWEPT * BLOCK);
	name_of(first);
	if (write(file, "begun ", 6) != 6)
		die(path);
	for (uint64_t round = 1;; round++) {
		for (size_t i = 0; i < SWEPT; i++) {
			memory[i * BLOCK / sizeof *memory] = round;
			if (i % 16)
				continue;
			name_of(name);
			if (!strcmp(name, first))
				continue;
			if (dprintf(file, "%s", swept(memory, round, i) ? "whole" : "torn") < 0)
				die(path);
			return;
		}
	}
}

static void *block(void)
{
	void *memory = aligned_alloc(BLOCK, BLOCK);
	if (!memory)
		die("memory");
	memset(memory, 0, BLOCK);
	return memory;
}

static void pair(const char *log_path, const char *disk_path)
{
	int log = open_or_die(log_path, O_WRONLY | O_CREAT | O_TRUNC);
	int disk = open_or_die(disk_path, O_WRONLY | O_DIRECT | O_DSYNC);
	struct entry *entry = block();
	char first[65], name[65];
	name_of(first);
	for (uint64_t n = 0;; n++) {
		entry->number = n + 1;
		random_bytes(entry->random, sizeof entry->random);
		name_of(name);
		if (strcmp(name, first))
			return;
		if (write(log, entry, sizeof *entry) != sizeof *entry)
			die(log_path);
		name_of(name);
		if (strcmp(name, first))
			return;
		if (pwrite(disk, entry, BLOCK, n * BLOCK) != BLOCK)
			die(disk_path);
	}
}

static int compare(const char *log_path, const char *disk_path)
{
	int log = open_or_die(log_path, O_RDONLY);
	int disk = open_or_die(disk_path, O_RDONLY | O_DIRECT);
	static const struct entry nothing;
	struct entry *there = block(), logged;
	uint64_t pairs = 0, n = 0;
	int logs = 1;
	for (; pread(disk, there, BLOCK, n * BLOCK) == BLOCK; n++) {
		logs = logs && read(log, &logged, sizeof logged) == sizeof logged;
		const struct entry *want = logs ? &logged : &nothing;
		if (!memcmp(there, want, sizeof *want)) {
			pairs += logs;
			continue;
		}
		/* The very last one may have been noted and not yet written. */
		if (logs && !memcmp(there, &nothing, sizeof nothing) && read(log, &logged, 1) == 0) {
			logs = 0;
			continue;
		}
		fprintf(stderr, "witness: block %llu of the disk is %llu, %s\n", (unsigned long long)n,
			(unsigned long long)there->number, logs ? "and was noted otherwise" : "and was never noted");
		return 1;
	}
	printf("%llu\n", (unsigned long long)pairs);
	return 0;
}

int main(int count, char **words)
{
	const char *what = count > 1 ? words[1] : "";
	if (!strcmp(what, "clock") && count == 2)
		clock_now();
	else if (!strcmp(what, "draw") && count == 3)
		draw(words[2]);
	else if (!strcmp(what, "name") && count == 3)
		note_name(words[2]);
	else if (!strcmp(what, "spin") && count == 3)
		spin(words[2]);
	else if (!strcmp(what, "sweep") && count == 3)
		sweep(words[2]);
	else if (!strcmp(what, "pair") && count == 4)
		pair(words[2], words[3]);
	else if (!strcmp(what, "compare") && count == 4)
		return compare(words[2], words[3]);
	else
		return 2;
	return 0;
}
