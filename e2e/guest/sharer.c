/*
 * Has data, and in each clone reads as much of it as it is told to.
 *
 *   sharer FOLDER PAGES    takes PAGES pages that each clone will read for itself,
 *                          marked so, and as many that are not; notes in FOLDER
 *                          that it is `ready`, and when there is a file `alone` or
 *                          `all`, reads the first half of these or those, and
 *                          notes their sum in `alone.done` or `all.done`
 */
#define _GNU_SOURCE
#include <forkyard.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / sizeof(uint64_t) };

static uint64_t state = 88172645463325252;

/* What does not pack, and is in no two pages. */
static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static uint64_t *take(size_t pages)
{
	uint64_t *data = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (data == MAP_FAILED)
		exit(1);
	for (size_t i = 0; i < pages * WORDS; i++)
		data[i] = next();
	return data;
}

static void note(const char *name, uint64_t value)
{
	FILE *file = fopen("note", "w");
	if (!file || fprintf(file, "%016llx\n", (unsigned long long)value) < 0 || fclose(file) || rename("note", name))
		exit(1);
}

static uint64_t sum(const uint64_t *data, size_t pages)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < pages * WORDS; i++)
		sum = sum * 31 + data[i];
	return sum;
}

int main(int count, char **words)
{
	size_t pages = count == 3 ? strtoul(words[2], NULL, 10) : 0;
	if (!pages || chdir(words[1]))
		return 2;
	uint64_t *alone = take(pages), *all = take(pages);
	if (forkyard_disjoint(alone, pages * PAGE)) {
		fprintf(stderr, "sharer: %s\n", forkyard_error());
		return 1;
	}
	note("alone.want", sum(alone, pages / 2));
	note("all.want", sum(all, pages / 2));
	note("ready", 0);
	for (;;) {
		if (!access("alone", F_OK) && access("alone.done", F_OK))
			note("alone.done", sum(alone, pages / 2));
		if (!access("all", F_OK) && access("all.done", F_OK))
			note("all.done", sum(all, pages / 2));
		usleep(2000);
	}
}
