/* The wall clock of one process: LD_PRELOAD this and name a file of 16 bytes in TENURE_CLOCK. It is mapped, so that a
 * test moves the clock while the process runs. First word: an offset in us. Second word: if not 0, the clock stands at
 * that many us since the epoch. Plain system calls only: nothing here allocates, as jemalloc asks for the time while it
 * starts. CLOCK_MONOTONIC is left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *words;

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("TENURE_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(0, 16, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) words = page;
    close(file);
}

static int64_t micros(int64_t real) {
    if (!words) return real;
    return (words[1] ? words[1] : real) + words[0];
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int failed = syscall(SYS_clock_gettime, clock, t);
    if (!failed && words && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t us = micros((int64_t)t->tv_sec * 1000000 + t->tv_nsec / 1000);
        t->tv_sec = us / 1000000;
        t->tv_nsec = us % 1000000 * 1000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict v, void *restrict zone) {
    struct timespec t;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &t)) return -1;
    v->tv_sec = t.tv_sec;
    v->tv_usec = t.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
