/* Forks, joins and kills; says what came of it, for a test to compare. */
#include <forkyard.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	struct forkyard_ticket *ticket = forkyard_request_ticket(3);
	if (!ticket) {
		printf("no ticket: %s\n", forkyard_error());
		return 1;
	}
	printf("ticket for %d: 1 has %d vcpus at %s, 9 has %d\n", forkyard_ticket_count(ticket),
	       forkyard_ticket_vcpus(ticket, 1), forkyard_ticket_ip(ticket, 1), forkyard_ticket_vcpus(ticket, 9));
	printf("clone %d\n", forkyard_clone(ticket));
	printf("well %d\n", forkyard_join(ticket));
	printf("status %d %d %d\n", forkyard_ticket_status(ticket, 1), forkyard_ticket_status(ticket, 2),
	       forkyard_ticket_status(ticket, 9));
	int again = forkyard_kill(ticket);
	printf("kill %d %s\n", again == FORKYARD_NOT_FOUND, forkyard_error());
	int null = forkyard_clone(NULL);
	printf("null %d %s\n", null == FORKYARD_INVALID, forkyard_error());
	char then[FORKYARD_CHECKPOINT_NAME];
	int taken = forkyard_checkpoint(then);
	printf("checkpoint %d %s\n", taken, then);
	printf("created %d\n", forkyard_create_clones(then, ticket));
	printf("dropped %d\n", forkyard_drop_checkpoint(then));
	int another = forkyard_drop_checkpoint("55555555555");
	printf("another %d %s\n", another == FORKYARD_NOT_FOUND, forkyard_error());
	int none = forkyard_create_clones("then", ticket);
	printf("none %d %s\n", none == FORKYARD_INVALID, forkyard_error());
	static const char data[4096];
	printf("disjoint %d\n", forkyard_disjoint(data, sizeof data));
	int elsewhere = forkyard_disjoint(NULL, 7);
	printf("elsewhere %d %s\n", elsewhere == FORKYARD_INVALID, forkyard_error());
	forkyard_ticket_free(ticket);
	forkyard_ticket_free(NULL);
	return 0;
}
