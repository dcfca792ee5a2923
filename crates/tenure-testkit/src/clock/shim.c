/* The wall clock of one process, as a test wants it.
 *
 * Loaded by LD_PRELOAD. TENURE_CLOCK names a file of three words of 64 bits, mapped, so that a change is seen at once:
 *   offset  in us, is added to the time;
 *   frozen  if not 0: the clock stands at that many us since the epoch (plus offset);
 *   check   ~(offset ^ frozen): if it does not fit, a change is being written, and we look again.
 * Plain system calls only: nothing here allocates, as jemalloc asks for the time while it starts.
 * CLOCK_MONOTONIC is left alone.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *words;

/* Without the file the clock would be right, and the test wrong: better no process. */
__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("TENURE_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(0, 3 * sizeof *words, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) {
        perror("TENURE_CLOCK");
        abort();
    }
    words = page;
    close(file);
}

static int64_t shown(int64_t real) {
    int64_t offset, frozen, check;
    do {
        offset = words[0];
        frozen = words[1];
        check = words[2];
    } while (check != ~(offset ^ frozen));
    return (frozen ? frozen : real) + offset;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int failed = syscall(SYS_clock_gettime, clock, t);
    if (!failed && words && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t us = shown((int64_t)t->tv_sec * 1000000 + t->tv_nsec / 1000);
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
