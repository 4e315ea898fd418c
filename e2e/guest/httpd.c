/* Serves HTTP: httpd PORT
 *
 * Keeps connections open, and answers every request with its own number among all. A body that has a
 * length is read and left. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 100, SIZE = 8192 };

static struct { char text[SIZE]; size_t length; } heard[MOST];
static struct pollfd at[MOST];
static unsigned long answered;

/* Bytes of the first request, if all of it is there. */
static size_t whole(const char *text, size_t length)
{
	const char *end = memmem(text, length, "\r\n\r\n", 4);
	if (!end)
		return 0;
	size_t head = end + 4 - text, body = 0;
	for (const char *line = text; line < end; line = strstr(line, "\r\n") + 2)
		if (!strncasecmp(line, "content-length:", 15))
			body = strtoul(line + 15, NULL, 10);
	return head + body <= length ? head + body : 0;
}

/* Answers what is there; true unless the connection is over. */
static int attend(int fd, int index)
{
	char *text = heard[index].text;
	ssize_t got = read(fd, text + heard[index].length, SIZE - 1 - heard[index].length);
	if (got <= 0)
		return 0;
	heard[index].length += got;
	text[heard[index].length] = 0;
	for (size_t used; (used = whole(text, heard[index].length));) {
		char body[32], answer[128];
		int length = sprintf(body, "%lu\n", ++answered);
		int all = sprintf(answer, "HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s", length, body);
		if (write(fd, answer, all) != all)
			return 0;
		heard[index].length -= used;
		memmove(text, text + used, heard[index].length + 1);
	}
	return heard[index].length < SIZE - 1;
}

int main(int argc, char **argv)
{
	struct sockaddr_in own = {.sin_family = AF_INET};
	int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	if (argc != 2)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	own.sin_port = htons(atoi(argv[1]));
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (void *)&own, sizeof own) || listen(listener, MOST) || daemon(0, 0))
		return 2;
	for (int i = 0; i < MOST; i++)
		at[i] = (struct pollfd){.fd = -1, .events = POLLIN};
	at[0].fd = listener;
	while (poll(at, MOST, -1) >= 0) {
		for (int i = 1; i < MOST; i++)
			if (at[i].fd >= 0 && at[i].revents && !attend(at[i].fd, i)) {
				close(at[i].fd);
				at[i].fd = -1;
			}
		if (!at[0].revents)
			continue;
		int peer = accept(listener, NULL, NULL);
		setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		int i = 1;
		while (i < MOST && at[i].fd >= 0)
			i++;
		if (i == MOST)
			close(peer);
		else
			at[i].fd = peer, heard[i].length = 0;
	}
	return 1;
}
