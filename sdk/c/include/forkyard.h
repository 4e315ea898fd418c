/*
 * libforkyard: a program in a guest forks the virtual machine it runs in.
 *
 *     struct forkyard_ticket *ticket = forkyard_request_ticket(4);
 *     int id = forkyard_clone(ticket);
 *     if (id > 0)
 *         forkyard_exit(work(id));
 *     forkyard_join(ticket);
 *     forkyard_ticket_free(ticket);
 *
 * After the API of SnowFlock (Lagar-Cavilla et al., Table I). Calls block, may
 * be made from any thread, and answer a negative number or NULL if they fail;
 * forkyard_error() then says why. Link with -lforkyard, or statically with
 * libforkyard.a -lpthread -ldl -lm.
 */

#ifndef FORKYARD_H
#define FORKYARD_H

#include <stdint.h>
#include <sys/types.h>

/*
 Bytes of a checkpoint's name, the NUL at its end included.
 */
#define FORKYARD_CHECKPOINT_NAME 12

/*
 Reason why a call failed: what calls return, negated in none.
 */
typedef enum forkyard_error_code {
  /*
   The request makes no sense.
   */
  FORKYARD_INVALID = -1,
  /*
   No such ticket or checkpoint, or it is used up.
   */
  FORKYARD_NOT_FOUND = -2,
  /*
   Not possible in this state, or in a clone.
   */
  FORKYARD_CONFLICT = -3,
  /*
   A limit is reached.
   */
  FORKYARD_EXHAUSTED = -4,
  /*
   The agent cannot be reached or did not answer as it should.
   */
  FORKYARD_AGENT = -5,
  /*
   The operation took longer than allowed.
   */
  FORKYARD_TIMEOUT = -6,
  /*
   The host failed.
   */
  FORKYARD_HOST = -7,
} forkyard_error_code;

/*
 A reservation of clones, and after a join how each of them ended.
 */
typedef struct forkyard_ticket forkyard_ticket;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Reserves clones of this VM; fewer may be granted than are asked for. NULL
 if none were. To be freed with forkyard_ticket_free. The ticket belongs to this
 process: when it ends, clones that were not joined are ended, and what was
 reserved is given back.
 */
struct forkyard_ticket *forkyard_request_ticket(uint16_t count);

/*
 Requests a ticket for processes: forkyard_clone forks in each clone until it
 has one for each vCPU it was granted, and numbers those. No more clones are
 made than so many processes need.
 */
struct forkyard_ticket *forkyard_request_ticket_hierarchical(uint16_t count);

/*
 Clones this VM. Returns 0 in the parent and 1, 2, … in the clones, as
 fork(2) does; clones that could not be made are told by the join. Negative
 if there is no clone at all. With a hierarchical ticket it then calls
 fork(2) in each clone, and returns in every process with its own number.

 # Safety
 `ticket` is NULL or came from forkyard_request_ticket and was not freed.
 */
int forkyard_clone(const struct forkyard_ticket *ticket);

/*
 forkyard_clone for languages that have a fork of their own: it calls no
 fork(2). Returns the number of the clone's first process, and sets
 `*processes` to how many there are to be, itself included.

 # Safety
 As forkyard_clone; `processes` is NULL or may be written to.
 */
int forkyard_clone_only(const struct forkyard_ticket *ticket, uint8_t *processes);

/*
 Ends this clone: its memory and disk vanish. Returns only if that failed.
 With a hierarchical ticket it ends this process, and the clone with the last
 of its processes.
 */
int forkyard_exit(uint8_t status);

/*
 forkyard_exit for languages that have a fork of their own: ends the clone at
 once, and says how its other processes ended, in the order of their numbers;
 negative for one that never said. `first` is the number of the second.

 # Safety
 `statuses` points to `count` numbers, or `count` is 0.
 */
int forkyard_exit_only(uint8_t status, uint16_t first, const int *statuses, size_t count);

/*
 Waits until this VM is forked, by whatever request. Returns in every clone,
 with its number; in the parent it goes on waiting.
 */
int forkyard_wait_fork(void);

/*
 Has these bytes of this process, the state of a random number generator,
 overwritten with random ones in every clone from now on, whichever request makes
 the fork, before any user code goes on there. For as long as the process
 lives: the memory must stay what it is.

 # Safety
 `state` points to `size` bytes for as long as the process lives.
 */
int forkyard_refill(void *state, size_t size);

/*
 Waits until every clone of the ticket has ended, and uses the ticket up:
 forkyard_ticket_status then tells how each ended. Returns the number of
 clones that exited with 0.

 # Safety
 `ticket` is NULL or came from forkyard_request_ticket, was not freed, and
 no other thread uses it meanwhile.
 */
int forkyard_join(struct forkyard_ticket *ticket);

/*
 Ends every clone of the ticket now, and uses the ticket up.

 # Safety
 As forkyard_clone.
 */
int forkyard_kill(const struct forkyard_ticket *ticket);

/*
 The number of this clone, or of this process of one; 0 in a VM that was
 booted.
 */
int forkyard_id(void);

/*
 The ticket's name, as `vmfork` takes it. It belongs to the ticket.

 # Safety
 As forkyard_clone.
 */
const char *forkyard_ticket_id(const struct forkyard_ticket *ticket);

/*
 Returns the number of clones that were granted, or of processes if the
 ticket is hierarchical: their numbers are 1 and up.

 # Safety
 As forkyard_clone.
 */
uint16_t forkyard_ticket_count(const struct forkyard_ticket *ticket);

/*
 vCPUs of the clone that has this number (1 and up); 0 if there is none.

 # Safety
 As forkyard_clone.
 */
uint8_t forkyard_ticket_vcpus(const struct forkyard_ticket *ticket, uint16_t id);

/*
 Address of the clone that has this number on the family's network; NULL if
 there is none. It belongs to the ticket.

 # Safety
 As forkyard_clone.
 */
const char *forkyard_ticket_ip(const struct forkyard_ticket *ticket, uint16_t id);

/*
 Returns the status of the clone with this number, after a join: 0 to 255 as
 it reported, or -1 if it was lost, could not be made, or does not exist.

 # Safety
 As forkyard_clone.
 */
int forkyard_ticket_status(const struct forkyard_ticket *ticket, uint16_t id);

/*
 Frees a ticket, used up or not. One that was not cloned with is given back.
 Clones that were not joined live on until this process ends: it holds them.

 # Safety
 As forkyard_join; the ticket must not be used afterwards.
 */
void forkyard_ticket_free(struct forkyard_ticket *ticket);

/*
 Returns why this thread's last call failed; valid until its next one fails.
 */
const char *forkyard_error(void);

/*
 Keeps this instant of this VM. Returns 0 now, and writes the checkpoint's
 name to `name`. Returns again, with 1, 2, …, in each clone that
 forkyard_create_clones makes of it later, the name left empty there; with a
 hierarchical ticket in each of its processes, as forkyard_clone does.

 # Safety
 FORKYARD_CHECKPOINT_NAME bytes may be written to `name`.
 */
int forkyard_checkpoint(char *name);

/*
 forkyard_checkpoint for languages that have a fork of their own, as
 forkyard_clone_only is.

 # Safety
 As forkyard_checkpoint; `processes` is NULL or may be written to.
 */
int forkyard_checkpoint_only(char *name, uint8_t *processes);

/*
 Makes the ticket's clones of a checkpoint that a VM of this family took, as
 often as there are tickets. Returns 0, in the caller alone: in the clones it
 is forkyard_checkpoint that returns. Clones that could not be made are told
 by the join; negative if there is none at all.

 # Safety
 `checkpoint` is NULL or a string; `ticket` as in forkyard_clone.
 */
int forkyard_create_clones(const char *checkpoint, const struct forkyard_ticket *ticket);

/*
 Forgets a checkpoint. Clones it has live on.

 # Safety
 `checkpoint` is NULL or a string.
 */
int forkyard_drop_checkpoint(const char *checkpoint);

/*
 Says that each clone will read other pages of these bytes of this process
 (disjoint access; SnowFlock, section 6.1). Hosts to which this VM is forked
 from now on are then sent those of the pages that they ask for, and not what
 the others do. Of the pages that are in memory now, and in whole, whatever
 else lies in them. A hint: it never changes what a clone reads. Returns 0.
 */
int forkyard_disjoint(const void *addr, size_t len);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FORKYARD_H */
