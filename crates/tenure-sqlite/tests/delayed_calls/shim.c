/* Stops one process before one of its calls that touch a folder, until it is told to go on.
 *
 * Loaded by LD_PRELOAD. DELAY_FOLDER: calls on paths in it, and on what was opened there, are counted from 1.
 * DELAY_AT: before which one it stops; 0: none. DELAY_CONTROL: a folder in which "paused" appears then, and in which it
 * waits for "go"; "calls" appears at the end, with a line per call.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char folder[512], control[512], ours[4096];
static const char *names[65536];
static unsigned at, count;

__attribute__((constructor)) static void begin(void) {
    const char *f = getenv("DELAY_FOLDER"), *c = getenv("DELAY_CONTROL"), *n = getenv("DELAY_AT");
    if (!f || !c || !n) abort();
    strncpy(control, c, sizeof control - 1);
    at = atoi(n);
    strncpy(folder, f, sizeof folder - 1);
}

static int there(const char *name, int flags) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", control, name);
    return syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0600);
}

__attribute__((destructor)) static void end(void) {
    int file = there("calls", O_WRONLY | O_CREAT);
    for (unsigned i = 0; i < count && i < 65536; i++) {
        syscall(SYS_write, file, names[i], strlen(names[i]));
        syscall(SYS_write, file, "\n", 1);
    }
}

static void turn(const char *name, int is_ours) {
    unsigned number;
    if (!is_ours) return;
    number = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (number <= 65536) names[number - 1] = name;
    if (number != at) return;
    syscall(SYS_close, there("paused", O_WRONLY | O_CREAT));
    for (;;) {
        struct timespec ms = {0, 1000000};
        int go = there("go", O_RDONLY);
        if (go >= 0) {
            syscall(SYS_close, go);
            return;
        }
        nanosleep(&ms, 0);
    }
}

static int in_folder(const char *path) { return folder[0] && path && strstr(path, folder) != 0; }
static int is_ours(int fd) { return fd >= 0 && fd < 4096 && ours[fd]; }

#define REAL(name, result, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name, int, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        unsigned mode = va_arg(more, unsigned); \
        va_end(more); \
        turn(#name, in_folder(path)); \
        int fd = real(path, flags, mode); \
        if (fd >= 0 && fd < 4096) ours[fd] = in_folder(path); \
        return fd; \
    }
OPEN(open)
OPEN(open64)

#define BY_PATH(name, result, parameters, arguments) \
    result name parameters { \
        REAL(name, result, ); \
        turn(#name, in_folder(path)); \
        return ((result(*) parameters)real)arguments; \
    }
BY_PATH(access, int, (const char *path, int mode), (path, mode))
BY_PATH(unlink, int, (const char *path), (path))
BY_PATH(rename, int, (const char *path, const char *to), (path, to))
BY_PATH(readlink, ssize_t, (const char *path, char *text, size_t size), (path, text, size))
BY_PATH(realpath, char *, (const char *path, char *text), (path, text))
BY_PATH(stat, int, (const char *path, struct stat *is), (path, is))
BY_PATH(stat64, int, (const char *path, struct stat64 *is), (path, is))
BY_PATH(lstat, int, (const char *path, struct stat *is), (path, is))
BY_PATH(lstat64, int, (const char *path, struct stat64 *is), (path, is))

int statx(int at, const char *restrict path, int flags, unsigned mask, struct statx *restrict is) {
    REAL(statx, int, int, const char *, int, unsigned, struct statx *);
    const char *volatile name = path; /* Without one, Rust asks whether there is such a call. */
    const char *where = name;
    turn("statx", where && where[0] ? in_folder(where) : is_ours(at));
    return real(at, path, flags, mask, is);
}

#define BY_FILE(name, result, parameters, arguments) \
    result name parameters { \
        REAL(name, result, ); \
        turn(#name, is_ours(fd)); \
        return ((result(*) parameters)real)arguments; \
    }
BY_FILE(flock, int, (int fd, int how), (fd, how))
BY_FILE(fstat, int, (int fd, struct stat *is), (fd, is))
BY_FILE(fstat64, int, (int fd, struct stat64 *is), (fd, is))
BY_FILE(fsync, int, (int fd), (fd))
BY_FILE(fdatasync, int, (int fd), (fd))
BY_FILE(ftruncate, int, (int fd, off_t size), (fd, size))
BY_FILE(ftruncate64, int, (int fd, off64_t size), (fd, size))
BY_FILE(fchmod, int, (int fd, mode_t mode), (fd, mode))
BY_FILE(fchown, int, (int fd, uid_t user, gid_t group), (fd, user, group))
BY_FILE(read, ssize_t, (int fd, void *data, size_t size), (fd, data, size))
BY_FILE(write, ssize_t, (int fd, const void *data, size_t size), (fd, data, size))
BY_FILE(pread, ssize_t, (int fd, void *data, size_t size, off_t from), (fd, data, size, from))
BY_FILE(pread64, ssize_t, (int fd, void *data, size_t size, off64_t from), (fd, data, size, from))
BY_FILE(pwrite, ssize_t, (int fd, const void *data, size_t size, off_t to), (fd, data, size, to))
BY_FILE(pwrite64, ssize_t, (int fd, const void *data, size_t size, off64_t to), (fd, data, size, to))
BY_FILE(posix_fallocate, int, (int fd, off_t from, off_t size), (fd, from, size))

void *mmap(void *where, size_t size, int how, int flags, int fd, off_t from) {
    turn("mmap", is_ours(fd));
    return (void *)syscall(SYS_mmap, where, size, how, flags, fd, from);
}

#define CONTROL(name) \
    int name(int fd, int what, ...) { \
        REAL(name, int, int, int, ...); \
        va_list more; \
        va_start(more, what); \
        void *with = va_arg(more, void *); \
        va_end(more); \
        turn(#name, is_ours(fd)); \
        return real(fd, what, with); \
    }
CONTROL(fcntl)
CONTROL(fcntl64)

int close(int fd) {
    int was_ours = is_ours(fd);
    turn("close", was_ours);
    if (was_ours) ours[fd] = 0;
    return syscall(SYS_close, fd);
}
