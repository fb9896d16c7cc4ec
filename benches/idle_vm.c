/* A VM that does nothing, for tick.rs: waits for ever in as many threads as it is told, with the
 * names that QEMU gives those that run virtual CPUs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *wait_for_ever(void *nothing) {
    for (;;)
        pause();
    return nothing;
}

int main(int count, char **arguments) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int cpu = 0; count == 2 && cpu < atoi(arguments[1]); cpu++) {
        pthread_t thread;
        char name[24];
        if (pthread_create(&thread, &small, wait_for_ever, NULL))
            return 1;
        snprintf(name, sizeof name, "CPU %d/KVM", cpu);
        pthread_setname_np(thread, name);
    }
    wait_for_ever(NULL);
}
