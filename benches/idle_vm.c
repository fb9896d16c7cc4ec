/* A VM that does nothing, for tick.rs: waits for ever in as many threads as it is told, with the
 * names that QEMU gives those that run virtual CPUs, and the last one that of an I/O thread. */
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
    int threads = count == 2 ? atoi(arguments[1]) : 0;
    for (int cpu = 0; cpu < threads; cpu++) {
        pthread_t thread;
        char name[24];
        if (pthread_create(&thread, &small, wait_for_ever, NULL))
            return 1;
        snprintf(name, sizeof name, cpu + 1 < threads ? "CPU %d/KVM" : "IO iothread%d", cpu);
        pthread_setname_np(thread, name);
    }
    wait_for_ever(NULL);
}
