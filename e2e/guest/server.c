/* Serves one connection: server ADDRESS PORT HEARD ANSWER
 *
 * Writes what it hears to the file HEARD while it says what is in the file ANSWER; each direction
 * ends by itself. Exits with 0 if both did, and with 1 if the connection broke. */

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Passes all on, to the end. */
static int pass(int from, int to)
{
	char buffer[1 << 16];
	ssize_t got;
	while ((got = read(from, buffer, sizeof buffer)) > 0)
		for (ssize_t done = 0, put; done < got; done += put)
			if ((put = write(to, buffer + done, got - done)) < 0)
				return 1;
	return got < 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	if (argc != 5 || inet_pton(AF_INET, argv[1], &at.sin_addr) != 1)
		return 2;
	at.sin_port = htons(atoi(argv[2]));
	int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	int heard = open(argv[3], O_WRONLY | O_CREAT | O_TRUNC, 0600);
	int answer = open(argv[4], O_RDONLY);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (heard < 0 || answer < 0 || bind(listener, (void *)&at, sizeof at) || listen(listener, 1))
		return 2;
	int peer = accept(listener, NULL, NULL);
	close(listener);
	pid_t child = fork();
	if (child == 0) {
		int failed = pass(answer, peer);
		shutdown(peer, SHUT_WR);
		_exit(failed);
	}
	int failed = pass(peer, heard), status = 1;
	waitpid(child, &status, 0);
	return failed || status;
}
