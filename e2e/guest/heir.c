/*
 * Programs that find themselves in a clone, with what was their parent's.
 *
 *   heir sockets PEER FILE   hold connections to PEER and to itself, and note in
 *                            FILE what becomes of each once this VM's name has
 *                            changed
 *   heir serve FILE          be PEER: take connections, and say nothing
 *   heir kill PID FILE       outside of what is held still for a fork, and so in
 *                            the parent and every clone: stop PID as soon as the
 *                            rest stands still, end it a while after, and note
 *                            what this VM was called when it was stopped
 *   heir timers FILE         let timers tick until a second after the name has
 *                            changed; then note in FILE how
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 7001, TICK_MS = 50 };

static int note;

static void die(const char *what)
{
	fprintf(stderr, "heir: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void say(const char *what, const char *how)
{
	char line[100];
	int length = snprintf(line, sizeof line, "%s %s\n", what, how);
	if (write(note, line, length) != length)
		die("note");
}

static int is_renamed(void)
{
	static char first[65];
	char name[65];
	if (gethostname(name, sizeof name))
		die("gethostname");
	if (!first[0])
		strcpy(first, name);
	return strcmp(name, first) != 0;
}

/* Waits for the peer to say something, which it never does. */
static void wait_on(const char *what, int fd, const struct sockaddr *peer, socklen_t length)
{
	char byte;
	if (fd < 0 || connect(fd, peer, length))
		die(what);
	say(what, "connected");
	ssize_t got = recv(fd, &byte, 1, 0);
	say(what, got < 0 ? (errno == ECONNABORTED ? "aborted" : strerror(errno)) : "heard");
}

static void over_ipv4(const char *what, int type, const char *ip)
{
	struct sockaddr_in peer = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	inet_pton(AF_INET, ip, &peer.sin_addr);
	wait_on(what, socket(AF_INET, type, 0), (struct sockaddr *)&peer, sizeof peer);
}

static void over_ipv6(const char *what, const char *ip)
{
	char mapped[64];
	struct sockaddr_in6 peer = { .sin6_family = AF_INET6, .sin6_port = htons(PORT) };
	snprintf(mapped, sizeof mapped, "::ffff:%s", ip);
	inet_pton(AF_INET6, mapped, &peer.sin6_addr);
	wait_on(what, socket(AF_INET6, SOCK_STREAM, 0), (struct sockaddr *)&peer, sizeof peer);
}

static void over_loopback(void)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof here;
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&here, length) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&here, &length) || connect(one, (struct sockaddr *)&here, length))
		die("loopback");
	int other = accept(listener, NULL, NULL);
	say("loopback", "connected");
	while (!is_renamed())
		usleep(2000);
	char byte = 'x';
	int well = write(one, &byte, 1) == 1 && read(other, &byte, 1) == 1;
	say("loopback", well ? "well" : strerror(errno));
}

static void sockets(const char *ip)
{
	if (!fork())
		return over_ipv4("tcp", SOCK_STREAM, ip);
	if (!fork())
		return over_ipv6("tcp6", ip);
	if (!fork())
		return over_ipv4("udp", SOCK_DGRAM, ip);
	if (!fork())
		return over_loopback();
	while (wait(NULL) > 0)
		;
}

static void serve(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 8))
		die("serve");
	say("serve", "begun");
	pause();
}

static void kill_while_held(pid_t pid)
{
	char name[65], state[100] = "";
	int door = open("/opt/forkyard/cgroup/cgroup.procs", O_WRONLY);
	int events = open("/opt/forkyard/cgroup/user/cgroup.events", O_RDONLY);
	if (door < 0 || events < 0 || write(door, "0", 1) != 1)
		die("cgroup");
	say("killer", "ready");
	while (!strstr(state, "frozen 1")) {
		usleep(200);
		memset(state, 0, sizeof state);
		if (pread(events, state, sizeof state - 1, 0) < 0)
			die("events");
	}
	/* Time to tell the host, also where it gives this machine little of its own. */
	usleep(20000);
	if (kill(pid, SIGSTOP) || gethostname(name, sizeof name))
		die("stop");
	usleep(700000);
	if (kill(pid, SIGKILL))
		die("kill");
	say("killed", name);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int signal)
{
	(void)signal;
	alarms++;
}

static int64_t now_ms(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void timers(void)
{
	struct itimerval alarm = { { 0, TICK_MS * 1000 }, { 0, TICK_MS * 1000 } };
	struct itimerspec tick = { { 0, TICK_MS * 1000000 }, { 0, TICK_MS * 1000000 } };
	int ticks = timerfd_create(CLOCK_MONOTONIC, 0);
	signal(SIGALRM, on_alarm);
	if (ticks < 0 || setitimer(ITIMER_REAL, &alarm, NULL) || timerfd_settime(ticks, 0, &tick, NULL))
		die("timers");
	say("timers", "begun");
	int64_t ran = now_ms(CLOCK_MONOTONIC), wall = now_ms(CLOCK_REALTIME), end = 0, jump = 0, step = 0;
	uint64_t most = 0, count;
	while (!end || ran < end) {
		if (read(ticks, &count, sizeof count) != sizeof count) {
			if (errno != EINTR)
				die("ticks");
			count = 0;
		}
		int64_t before = ran, wall_before = wall;
		ran = now_ms(CLOCK_MONOTONIC);
		wall = now_ms(CLOCK_REALTIME);
		if (!end && is_renamed()) {
			end = ran + 1000;
			jump = ran - before;
			step = wall - wall_before;
			alarms = 0;
		}
		if (end && count > most)
			most = count;
	}
	char text[100];
	snprintf(text, sizeof text, "%d %llu %lld %lld %lld", (int)alarms, (unsigned long long)most,
		 (long long)(ran - end + 1000), (long long)jump, (long long)step);
	say("done", text);
}

int main(int count, char **words)
{
	const char *what = count > 1 ? words[1] : "";
	note = open(words[count - 1], O_WRONLY | O_CREAT | O_APPEND, 0644);
	if (note < 0)
		die(words[count - 1]);
	is_renamed();
	if (!strcmp(what, "sockets") && count == 4)
		sockets(words[2]);
	else if (!strcmp(what, "kill") && count == 4)
		kill_while_held(atoi(words[2]));
	else if (!strcmp(what, "serve") && count == 3)
		serve();
	else if (!strcmp(what, "timers") && count == 3)
		timers();
	else
		return 2;
	return 0;
}
