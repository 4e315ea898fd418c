/* Measures how long a VM is silent:
 *
 *   prober echo PORT            answers each packet of UDP, for ever
 *   prober ask ADDRESS PORT MS  asks every MS milliseconds until the file /tmp/enough is there;
 *                               then says the longest time without an answer, in microseconds,
 *                               and on a line each when there was none for 100 ms, and how long,
 *                               in milliseconds
 *   prober write MIB RATE       writes RATE pages a second, one after the other, in MIB of memory,
 *                               for ever */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096

static uint64_t now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000ull + time.tv_nsec / 1000;
}

static int echo(int port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
	int socket_ = socket(AF_INET, SOCK_DGRAM, 0);
	if (bind(socket_, (void *)&at, sizeof at))
		return 1;
	for (;;) {
		char packet[64];
		socklen_t length = sizeof at;
		ssize_t got = recvfrom(socket_, packet, sizeof packet, 0, (void *)&at, &length);
		if (got > 0)
			sendto(socket_, packet, got, 0, (void *)&at, length);
	}
}

static int ask(const char *address, int port, int every)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
	if (inet_pton(AF_INET, address, &at.sin_addr) != 1)
		return 1;
	int asking = socket(AF_INET, SOCK_DGRAM, 0);
	if (connect(asking, (void *)&at, sizeof at))
		return 1;
	struct { int from, length; } silences[100];
	int count = 0;
	uint64_t begun = now(), heard = 0, longest = 0, next = begun, looked = begun;
	for (;;) {
		uint64_t time = now();
		if (time >= next) {
			send(asking, &time, sizeof time, 0);
			next = time + every * 1000ull;
		}
		struct pollfd answer = {.fd = asking, .events = POLLIN};
		int left = next > time ? (next - time) / 1000 : 0;
		if (poll(&answer, 1, left) > 0 && recv(asking, &time, sizeof time, 0) > 0) {
			time = now();
			if (heard && time - heard > longest)
				longest = time - heard;
			if (heard && time - heard > 100000 && count < 100) {
				silences[count].from = (heard - begun) / 1000;
				silences[count++].length = (time - heard) / 1000;
			}
			heard = time;
		}
		if (time - looked > 200000) {
			looked = time;
			if (!access("/tmp/enough", F_OK))
				break;
		}
	}
	printf("%llu\n", (unsigned long long)longest);
	for (int at = 0; at < count; at++)
		printf("%d %d\n", silences[at].from, silences[at].length);
	return !heard;
}

static int dirty(size_t mib, uint64_t rate)
{
	size_t size = mib << 20;
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	/* Pages that do not pack. */
	for (size_t at = 0; at < size; at += sizeof(int))
		*(int *)(memory + at) = random();
	uint64_t begun = now(), done = 0;
	for (;;) {
		uint64_t wanted = (now() - begun) * rate / 1000000;
		for (; done < wanted; done++)
			*(uint64_t *)(memory + done * PAGE % size) = done;
		usleep(10000);
	}
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "echo"))
		return echo(atoi(argv[2]));
	if (argc == 5 && !strcmp(argv[1], "ask"))
		return ask(argv[2], atoi(argv[3]), atoi(argv[4]));
	if (argc == 4 && !strcmp(argv[1], "write"))
		return dirty(atoi(argv[2]), atoi(argv[3]));
	return 2;
}
