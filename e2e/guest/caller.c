/*
 * Forks the VM it runs in through libforkyard. Clones tell by their exit
 * status whether they are who they should be; the parent prints it.
 *
 *   caller                 three clones
 *   caller hierarchical    three processes, in as many clones as that takes
 *   caller checkpoint      two clones of an instant before it changed its mind
 *   caller refill FILE     none; registers a generator, and prints its state to
 *                          FILE once this VM's name has changed
 */
#define _GNU_SOURCE
#include <forkyard.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CLONES = 3 };

static int failed(const char *what)
{
	fprintf(stderr, "caller: %s: %s\n", what, forkyard_error());
	return 1;
}

static int refill(const char *path)
{
	static unsigned char state[16] = "as it was";
	char first[65], name[65];
	gethostname(first, sizeof first);
	if (forkyard_refill(state, sizeof state))
		return failed("refill");
	FILE *file = fopen(path, "w");
	if (!file)
		return failed(path);
	fprintf(file, "registered\n");
	fflush(file);
	do
		gethostname(name, sizeof name);
	while (!strcmp(name, first));
	for (size_t i = 0; i < sizeof state; i++)
		fprintf(file, "%02x", state[i]);
	fprintf(file, "\n");
	return fclose(file);
}

static int checkpoint(void)
{
	static int value = 30;
	char then[FORKYARD_CHECKPOINT_NAME];
	int id = forkyard_checkpoint(then);
	if (id < 0)
		return failed("checkpoint");
	if (id > 0)
		forkyard_exit(forkyard_id() == id ? value + id : 99);
	value = 60;
	struct forkyard_ticket *ticket = forkyard_request_ticket(2);
	if (!ticket || forkyard_create_clones(then, ticket))
		return failed("create_clones");
	forkyard_join(ticket);
	printf("%d: %d %d\n", value, forkyard_ticket_status(ticket, 1), forkyard_ticket_status(ticket, 2));
	forkyard_ticket_free(ticket);
	return forkyard_drop_checkpoint(then) ? failed("drop_checkpoint") : 0;
}

int main(int count, char **words)
{
	if (count == 2 && !strcmp(words[1], "checkpoint"))
		return checkpoint();
	if (count == 3 && !strcmp(words[1], "refill"))
		return refill(words[2]);
	int hierarchical = count == 2 && !strcmp(words[1], "hierarchical");
	if (forkyard_id() != 0)
		return failed("not the parent");
	struct forkyard_ticket *ticket =
		hierarchical ? forkyard_request_ticket_hierarchical(CLONES) : forkyard_request_ticket(CLONES);
	if (!ticket)
		return failed("request_ticket");
	int base = forkyard_ticket_count(ticket) * 10;
	int id = forkyard_clone(ticket);
	if (id < 0)
		return failed("clone");
	if (id > 0)
		forkyard_exit(forkyard_id() == id ? base + id : 99);
	printf("%d exited with 0\n", forkyard_join(ticket));
	for (int n = 1; n <= CLONES; n++)
		printf("%d: %d\n", n, forkyard_ticket_status(ticket, n));
	if (forkyard_clone(ticket) != FORKYARD_NOT_FOUND)
		return failed("a ticket was used twice");
	forkyard_ticket_free(ticket);
	return 0;
}
