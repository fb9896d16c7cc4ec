/* What reading pressure files costs without an agent, the yardstick of sample.rs.
 *   read_loop openat   keeps directories; opens, reads and closes each file
 *   read_loop pread    keeps every file open (a buffer of the kernel's each) and reads it
 * In: directories, one a line, and an empty line. For each line after that, fills the caches with
 * something else, makes one sweep over cpu, memory and io.pressure of all, and prints the CPU time
 * of the sweep in nanoseconds. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const NAMES[] = {"cpu.pressure", "memory.pressure", "io.pressure"};

static long long cpu_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int checked(long result, const char *what) {
    if (result < 0 || (result == 0 && strcmp(what, "read") == 0)) {
        perror(what);
        exit(1);
    }
    return (int)result;
}

int main(int argc, char **argv) {
    int keeps_files = argc > 1 && strcmp(argv[1], "pread") == 0;
    static int dirs[100000], files[100000][3];
    size_t count = 0;
    static volatile unsigned char other_work[96 << 20];
    char line[4096], text[16384];
    while (fgets(line, sizeof line, stdin) && line[0] != '\n' && count < 100000) {
        line[strcspn(line, "\n")] = 0;
        dirs[count] = checked(open(line, O_PATH | O_DIRECTORY | O_CLOEXEC), line);
        for (int i = 0; keeps_files && i < 3; i++)
            files[count][i] = checked(openat(dirs[count], NAMES[i], O_RDONLY | O_CLOEXEC), line);
        count++;
    }
    while (fgets(line, sizeof line, stdin)) {
        for (size_t at = 0; at < sizeof other_work; at += 64)
            other_work[at] ^= 1;
        long long start = cpu_ns();
        for (size_t dir = 0; dir < count; dir++)
            for (int i = 0; i < 3; i++) {
                if (keeps_files) {
                    checked(pread(files[dir][i], text, sizeof text, 0), "read");
                    continue;
                }
                int file = checked(openat(dirs[dir], NAMES[i], O_RDONLY | O_CLOEXEC), "open");
                checked(read(file, text, sizeof text), "read");
                close(file);
            }
        printf("%lld\n", cpu_ns() - start);
        fflush(stdout);
    }
    return 0;
}
