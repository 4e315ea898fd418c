/*
 * A guide tree of protein sequences by VM fork, after the ClustalW example of
 * the SnowFlock paper (section 2.1.1): prepare once, clone, align a share of
 * the pairs in each clone, send the scores home over the family's network,
 * join, and build the tree in the parent.
 *
 *     guidetree FASTA CLONES        CLONES = 0: one VM does all the work
 *
 * The tree (Newick) goes to standard output, all else to standard error.
 *
 * Distances are 1 - identities / aligned columns of an optimal global
 * alignment (Gotoh's affine gaps, BLOSUM62); the tree is by neighbour joining
 * (Saitou and Nei). Scores are whole numbers, so that the tree does not depend
 * on who computed what.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <forkyard.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SEQUENCES = 512, MAX_LENGTH = 4096, MAX_CLONES = 256, GAP_OPEN = 10, GAP_EXTEND = 1 };

struct sequence {
	char name[64];
	uint8_t *residues; /* indices into the score table */
	int length;
};

/* Identities and columns of an alignment; also what a clone sends home. */
struct score {
	uint16_t a, b;
	uint32_t identities, columns;
};

static struct sequence sequences[MAX_SEQUENCES];
static int count;
static struct score *scores; /* one a pair; columns = 0: not known yet */

static const char LETTERS[] = "ARNDCQEGHILKMFPSTWYVBZX";
static const int8_t BLOSUM62[23][23] = {
	{4, -1, -2, -2, 0, -1, -1, 0, -2, -1, -1, -1, -1, -2, -1, 1, 0, -3, -2, 0, -2, -1, 0},
	{-1, 5, 0, -2, -3, 1, 0, -2, 0, -3, -2, 2, -1, -3, -2, -1, -1, -3, -2, -3, -1, 0, -1},
	{-2, 0, 6, 1, -3, 0, 0, 0, 1, -3, -3, 0, -2, -3, -2, 1, 0, -4, -2, -3, 3, 0, -1},
	{-2, -2, 1, 6, -3, 0, 2, -1, -1, -3, -4, -1, -3, -3, -1, 0, -1, -4, -3, -3, 4, 1, -1},
	{0, -3, -3, -3, 9, -3, -4, -3, -3, -1, -1, -3, -1, -2, -3, -1, -1, -2, -2, -1, -3, -3, -2},
	{-1, 1, 0, 0, -3, 5, 2, -2, 0, -3, -2, 1, 0, -3, -1, 0, -1, -2, -1, -2, 0, 3, -1},
	{-1, 0, 0, 2, -4, 2, 5, -2, 0, -3, -3, 1, -2, -3, -1, 0, -1, -3, -2, -2, 1, 4, -1},
	{0, -2, 0, -1, -3, -2, -2, 6, -2, -4, -4, -2, -3, -3, -2, 0, -2, -2, -3, -3, -1, -2, -1},
	{-2, 0, 1, -1, -3, 0, 0, -2, 8, -3, -3, -1, -2, -1, -2, -1, -2, -2, 2, -3, 0, 0, -1},
	{-1, -3, -3, -3, -1, -3, -3, -4, -3, 4, 2, -3, 1, 0, -3, -2, -1, -3, -1, 3, -3, -3, -1},
	{-1, -2, -3, -4, -1, -2, -3, -4, -3, 2, 4, -2, 2, 0, -3, -2, -1, -2, -1, 1, -4, -3, -1},
	{-1, 2, 0, -1, -3, 1, 1, -2, -1, -3, -2, 5, -1, -3, -1, 0, -1, -3, -2, -2, 0, 1, -1},
	{-1, -1, -2, -3, -1, 0, -2, -3, -2, 1, 2, -1, 5, 0, -2, -1, -1, -1, -1, 1, -3, -1, -1},
	{-2, -3, -3, -3, -2, -3, -3, -3, -1, 0, 0, -3, 0, 6, -4, -2, -2, 1, 3, -1, -3, -3, -1},
	{-1, -2, -2, -1, -3, -1, -1, -2, -2, -3, -3, -1, -2, -4, 7, -1, -1, -4, -3, -2, -2, -1, -2},
	{1, -1, 1, 0, -1, 0, 0, 0, -1, -2, -2, 0, -1, -2, -1, 4, 1, -3, -2, -2, 0, 0, 0},
	{0, -1, 0, -1, -1, -1, -1, -2, -2, -1, -1, -1, -1, -2, -1, 1, 5, -2, -2, 0, -1, -1, 0},
	{-3, -3, -4, -4, -2, -2, -3, -2, -2, -3, -2, -3, -1, 1, -4, -3, -2, 11, 2, -3, -4, -3, -2},
	{-2, -2, -2, -3, -2, -1, -2, -3, 2, -1, -1, -2, -1, 3, -3, -2, -2, 2, 7, -1, -3, -2, -1},
	{0, -3, -3, -3, -1, -2, -2, -3, -3, 3, 1, -2, 1, -1, -2, -2, 0, -3, -1, 4, -3, -2, -1},
	{-2, -1, 3, 4, -3, 0, 1, -1, 0, -3, -4, 0, -3, -3, -2, 0, -1, -4, -3, -3, 4, 1, -1},
	{-1, 0, 0, 1, -3, 3, 4, -2, 0, -3, -3, 1, -1, -3, -1, 0, -1, -3, -2, -2, 1, 4, -1},
	{0, -1, -1, -1, -2, -1, -1, -1, -1, -1, -1, -1, -1, -1, -2, 0, 0, -2, -1, -1, -1, -1, -1},
};

static void die(const char *what)
{
	fprintf(stderr, "guidetree: %s: %s\n", what, errno ? strerror(errno) : "malformed");
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- input ---- */

static void load(const char *path)
{
	FILE *file = fopen(path, "r");
	if (!file)
		die(path);
	char line[8192];
	uint8_t residues[MAX_LENGTH];
	struct sequence *current = NULL;
	for (;;) {
		int more = fgets(line, sizeof line, file) != NULL;
		if ((!more || line[0] == '>') && current) {
			current->residues = malloc((size_t)current->length + 1);
			if (!current->residues)
				die("memory");
			memcpy(current->residues, residues, (size_t)current->length);
		}
		if (!more)
			break;
		if (line[0] == '>') {
			if (count == MAX_SEQUENCES)
				break;
			current = &sequences[count++];
			/* Swiss-Prot heads: >sp|ACCESSION|NAME text */
			char *name = strrchr(strtok(line + 1, " \t\r\n"), '|');
			snprintf(current->name, sizeof current->name, "%.60s", name ? name + 1 : line + 1);
			continue;
		}
		for (char *c = line; current && *c; c++) {
			char *at = isalpha((unsigned char)*c) ? strchr(LETTERS, toupper((unsigned char)*c)) : NULL;
			if (isalpha((unsigned char)*c) && current->length < MAX_LENGTH)
				residues[current->length++] = (uint8_t)((at && *at) ? at - LETTERS : 22);
		}
	}
	fclose(file);
	errno = 0;
	if (count < 3)
		die("fewer than three sequences");
}

/* ---- alignment ---- */

/* Best score of a state of Gotoh's recurrence, and what its path has seen. */
struct cell {
	int score;
	uint32_t identities, columns;
};

static struct cell better(struct cell x, struct cell y)
{
	return y.score > x.score ? y : x;
}

static struct cell gap(struct cell from, int cost)
{
	return (struct cell){from.score - cost, from.identities, from.columns + 1};
}

static struct score align(int a, int b)
{
	static struct cell best[MAX_LENGTH + 1], up[MAX_LENGTH + 1];
	const struct sequence *x = &sequences[a], *y = &sequences[b];
	const int never = -1000000;
	best[0] = (struct cell){0, 0, 0};
	for (int j = 1; j <= y->length; j++) {
		best[j] = (struct cell){-GAP_OPEN - j * GAP_EXTEND, 0, (uint32_t)j};
		up[j] = (struct cell){never, 0, 0};
	}
	for (int i = 1; i <= x->length; i++) {
		struct cell diagonal = best[0], left = {never, 0, 0};
		best[0] = (struct cell){-GAP_OPEN - i * GAP_EXTEND, 0, (uint32_t)i};
		const int8_t *row = BLOSUM62[x->residues[i - 1]];
		for (int j = 1; j <= y->length; j++) {
			up[j] = better(gap(best[j], GAP_OPEN + GAP_EXTEND), gap(up[j], GAP_EXTEND));
			left = better(gap(best[j - 1], GAP_OPEN + GAP_EXTEND), gap(left, GAP_EXTEND));
			uint8_t residue = y->residues[j - 1];
			struct cell match = {diagonal.score + row[residue],
					     diagonal.identities + (residue == x->residues[i - 1]),
					     diagonal.columns + 1};
			diagonal = best[j];
			best[j] = better(better(match, up[j]), left);
		}
	}
	struct cell end = best[y->length];
	return (struct score){(uint16_t)a, (uint16_t)b, end.identities, end.columns};
}

static int pairs(void)
{
	return count * (count - 1) / 2;
}

static int pair_index(int a, int b)
{
	return b * (b - 1) / 2 + a; /* a < b */
}

static void progress(int done, int total, double since)
{
	static int shown = -1;
	int percent = done * 100 / total;
	if (percent / 10 != shown / 10 || shown < 0)
		fprintf(stderr, "guidetree: %d of %d pairs, %.1f s\n", done, total, now() - since);
	shown = percent;
}

/* ---- the share of a clone ---- */

static void work(int id, int clones, const struct sockaddr_in *home)
{
	int link = socket(AF_INET, SOCK_STREAM, 0);
	if (link < 0 || connect(link, (const struct sockaddr *)home, sizeof *home) != 0)
		die("cannot reach the parent");
	FILE *out = fdopen(link, "w");
	if (!out)
		die("cannot reach the parent");
	for (int b = 1; b < count; b++)
		for (int a = 0; a < b; a++)
			if (pair_index(a, b) % clones == id - 1) {
				struct score score = align(a, b);
				if (fwrite(&score, sizeof score, 1, out) != 1)
					die("the parent is gone");
			}
	if (fclose(out) != 0)
		die("the parent is gone");
}

/* ---- the parent ---- */

static void keep(const struct score *score, int *done)
{
	if (score->a >= score->b || score->b >= count || score->columns == 0)
		return;
	struct score *slot = &scores[pair_index(score->a, score->b)];
	*done += slot->columns == 0;
	*slot = *score;
}

/* Takes in what the clones send until all have said what they had to say. */
static void collect(int listener, int clones, double since)
{
	struct {
		struct score score;
		size_t have;
	} partial[MAX_CLONES + 1] = {0};
	struct pollfd fds[MAX_CLONES + 1] = {{.fd = listener, .events = POLLIN}};
	int connected = 0, closed = 0, done = 0;
	while (closed < clones) {
		/* A clone that died says nothing: 30 s of silence and we go on. */
		if (poll(fds, (nfds_t)(1 + connected), 30000) <= 0)
			break;
		if ((fds[0].revents & POLLIN) && connected < clones) {
			int link = accept(listener, NULL, NULL);
			if (link >= 0)
				fds[++connected] = (struct pollfd){.fd = link, .events = POLLIN};
		}
		for (int i = 1; i <= connected; i++) {
			if (fds[i].fd < 0 || !fds[i].revents)
				continue;
			ssize_t got = read(fds[i].fd, (char *)&partial[i].score + partial[i].have,
					   sizeof(struct score) - partial[i].have);
			if (got <= 0) {
				close(fds[i].fd);
				fds[i].fd = -1;
				closed++;
				continue;
			}
			partial[i].have += (size_t)got;
			if (partial[i].have == sizeof(struct score)) {
				partial[i].have = 0;
				keep(&partial[i].score, &done);
				progress(done, pairs(), since);
			}
		}
	}
}

/* Aligns whatever nobody has: everything in a single VM, the share of clones
 * that failed otherwise. */
static void align_rest(double since)
{
	int missing = 0;
	for (int i = 0; i < pairs(); i++)
		missing += scores[i].columns == 0;
	if (missing && missing < pairs())
		fprintf(stderr, "guidetree: %d pairs did not come back; aligning them here\n", missing);
	int done = pairs() - missing;
	for (int b = 1; missing && b < count; b++)
		for (int a = 0; a < b; a++)
			if (scores[pair_index(a, b)].columns == 0) {
				struct score score = align(a, b);
				keep(&score, &done);
				progress(done, pairs(), since);
			}
}

/* ---- the tree ---- */

static char *join(char *left, double x, char *right, double y)
{
	size_t size = strlen(left) + strlen(right) + 64;
	char *text = malloc(size);
	if (!text)
		die("memory");
	snprintf(text, size, "(%s:%.5f,%s:%.5f)", left, x, right, y);
	free(left);
	free(right);
	return text;
}

static void print_tree(void)
{
	static double d[MAX_SEQUENCES][MAX_SEQUENCES];
	static char *node[MAX_SEQUENCES];
	int n = count;
	for (int b = 0; b < count; b++) {
		node[b] = strdup(sequences[b].name);
		for (int a = 0; a < b; a++) {
			const struct score *s = &scores[pair_index(a, b)];
			d[a][b] = d[b][a] = 1.0 - (double)s->identities / (double)s->columns;
		}
	}
	while (n > 2) {
		double sum[MAX_SEQUENCES] = {0}, least = 1e300;
		int x = 0, y = 1;
		for (int i = 0; i < n; i++)
			for (int j = 0; j < n; j++)
				sum[i] += d[i][j];
		for (int i = 0; i < n; i++)
			for (int j = i + 1; j < n; j++) {
				double q = (n - 2) * d[i][j] - sum[i] - sum[j];
				if (q < least) {
					least = q;
					x = i;
					y = j;
				}
			}
		double to_x = d[x][y] / 2 + (sum[x] - sum[y]) / (2 * (n - 2)), to_y = d[x][y] - to_x;
		node[x] = join(node[x], to_x, node[y], to_y);
		for (int k = 0; k < n; k++)
			if (k != x && k != y)
				d[x][k] = d[k][x] = (d[x][k] + d[y][k] - d[x][y]) / 2;
		/* The last node takes the place of the one that was joined away. */
		n--;
		node[y] = node[n];
		for (int k = 0; k < n; k++)
			d[y][k] = d[k][y] = d[n][k];
		d[y][y] = 0;
	}
	printf("%s;\n", join(node[0], d[0][1] / 2, node[1], d[0][1] / 2));
}

/* ---- the fork ---- */

static struct sockaddr_in listen_at_home(int *listener)
{
	struct ifreq request = {0};
	struct sockaddr_in home;
	socklen_t size = sizeof home;
	strcpy(request.ifr_name, "eth0");
	*listener = socket(AF_INET, SOCK_STREAM, 0);
	if (*listener < 0 || ioctl(*listener, SIOCGIFADDR, &request) != 0)
		die("no address on eth0");
	memcpy(&home, &request.ifr_addr, sizeof home);
	home.sin_port = 0;
	if (bind(*listener, (struct sockaddr *)&home, sizeof home) != 0 || listen(*listener, MAX_CLONES) != 0 ||
	    getsockname(*listener, (struct sockaddr *)&home, &size) != 0)
		die("cannot listen");
	return home;
}

static void forkyard_die(const char *what)
{
	fprintf(stderr, "guidetree: %s: %s\n", what, forkyard_error());
	exit(1);
}

static void align_by_clones(int wanted, double since)
{
	int listener;
	struct sockaddr_in home = listen_at_home(&listener);
	struct forkyard_ticket *ticket = forkyard_request_ticket((uint16_t)wanted);
	if (!ticket)
		forkyard_die("no ticket");
	int clones = (int)forkyard_ticket_count(ticket);
	int id = forkyard_clone(ticket);
	if (id < 0)
		forkyard_die("cannot clone");
	if (id > 0) {
		work(id, clones, &home);
		forkyard_exit(0);
	}
	fprintf(stderr, "guidetree: %d clones at work after %.2f s\n", clones, now() - since);
	collect(listener, clones, now());
	if (forkyard_join(ticket) < 0)
		forkyard_die("cannot join");
	forkyard_ticket_free(ticket);
	close(listener);
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: guidetree FASTA CLONES\n");
		return 2;
	}
	int wanted = atoi(argv[2]);
	if (wanted < 0 || wanted > MAX_CLONES) {
		fprintf(stderr, "guidetree: 0 to %d clones\n", MAX_CLONES);
		return 2;
	}
	load(argv[1]);
	scores = calloc((size_t)pairs(), sizeof *scores);
	if (!scores)
		die("memory");
	fprintf(stderr, "guidetree: %d sequences, %d pairs\n", count, pairs());
	double begin = now();
	if (wanted > 0)
		align_by_clones(wanted, begin);
	align_rest(begin);
	fprintf(stderr, "guidetree: aligned in %.2f s\n", now() - begin);
	print_tree();
	return 0;
}
