// What runs in the node's containers: a process that sleeps until it is told to burn CPU.
// `load [TASKS]`: SIGUSR1 lets every task burn, SIGUSR2 lets it sleep, SIGTERM ends it.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static volatile sig_atomic_t burning;

static void start(int signal) { (void)signal, burning = 1; }
static void stop(int signal) { (void)signal, burning = 0; }
static void end(int signal) { (void)signal, _exit(0); }

static void handle(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler};
    if (sigaction(number, &action, NULL) != 0) {
        perror("load: sigaction");
        exit(1);
    }
}

int main(int count, char **arguments) {
    int tasks = count > 1 ? atoi(arguments[1]) : 1;
    if (count > 2 || tasks < 1) {
        fprintf(stderr, "usage: load [TASKS]\n");
        return 64;
    }
    // As the first process of its container it would ignore what it does not handle.
    handle(SIGTERM, end);
    handle(SIGUSR1, start);
    handle(SIGUSR2, stop);
    for (int more = 1; more < tasks; more++) {
        pid_t child = fork();
        if (child < 0) {
            perror("load: fork");
            return 1;
        }
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            break;
        }
    }
    // A signal between looking and sleeping would be lost: they are let in while it sleeps.
    sigset_t told, none;
    sigemptyset(&none);
    sigemptyset(&told);
    sigaddset(&told, SIGUSR1);
    sigaddset(&told, SIGUSR2);
    for (;;) {
        sigprocmask(SIG_BLOCK, &told, NULL);
        while (!burning) sigsuspend(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        while (burning) {
        }
    }
}
