/* Keeps the namespaces of a Pod open and, if its containers share a process namespace, reaps orphaned processes. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signo) {
	(void)signo;
	_exit(0);
}

static void reap(int signo) {
	(void)signo;
	while (waitpid(-1, NULL, WNOHANG) > 0) {
	}
}

int main(void) {
	struct sigaction on_end = {.sa_handler = end};
	struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP | SA_RESTART};
	if (sigaction(SIGINT, &on_end, NULL) != 0 || sigaction(SIGTERM, &on_end, NULL) != 0 ||
	    sigaction(SIGCHLD, &on_child, NULL) != 0) {
		return EXIT_FAILURE;
	}
	for (;;) {
		pause();
	}
}
