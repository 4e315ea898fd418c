/* What examples/fuzz.py fuzzes: a server with state that no single message gets to, and a fault at the end of it.
 *
 *     cc -static -O1 examples/fuzz.c -o target
 *
 * Answers lines on port 7000 of the loopback, for all connections alike: its state is that of the process.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static struct {
    int step;
    char name[16];
    char *end; /* A name that is too long is written over it. */
} state;

static const char *answer(const char *line)
{
    if (strncmp(line, "HELO ", 5) == 0)
        return state.step ? "503 again" : (state.step = 1, "220 hello");
    if (strncmp(line, "AUTH ", 5) == 0)
        return state.step == 1 ? (state.step = 2, "235 you are in") : "503 say hello first";
    if (strncmp(line, "NAME ", 5) == 0) {
        if (state.step < 2)
            return "530 not for you";
        state.end = state.name + sizeof state.name - 1;
        strcpy(state.name, line + 5);
        *state.end = 0;
        return "250 kept";
    }
    return "500 what?";
}

int main(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(7000), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    signal(SIGPIPE, SIG_IGN); /* A client that goes away is no fault. */
    int listening = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listening, (struct sockaddr *)&here, sizeof here) || listen(listening, 8)) {
        perror("port 7000");
        return 1;
    }
    for (;;) {
        int fd = accept(listening, NULL, NULL);
        FILE *peer = fdopen(fd, "r");
        char line[512];
        while (peer && fgets(line, sizeof line, peer)) {
            line[strcspn(line, "\r\n")] = 0;
            dprintf(fd, "%s\n", answer(line));
        }
        if (peer)
            fclose(peer);
    }
}
