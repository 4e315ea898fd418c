/* A clone of a hierarchical ticket: three processes, and what the first says of them. */
#include <forkyard.h>
#include <stdio.h>

int main(void)
{
	struct forkyard_ticket *ticket = forkyard_request_ticket_hierarchical(3);
	printf("%d of %d vcpus\n", forkyard_ticket_count(ticket), forkyard_ticket_vcpus(ticket, 3));
	fflush(stdout);
	int id = forkyard_clone(ticket);
	if (id != forkyard_id())
		return 1;
	if (id > 1)
		forkyard_exit(10 + id);
	/* The agent of this test refuses, and says what it heard. */
	forkyard_exit(5);
	printf("%s\n", forkyard_error());
	return 0;
}
