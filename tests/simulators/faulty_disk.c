/* A disk that fails: calls below one folder return an error, from the nth on, for so many calls.
 *
 * Preloaded into a process. FAULTY_DISK names a file that the test maps, too:
 * what fails, and how many calls were counted. FAULTY_FOLDER is the folder.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { READS = 1, WRITES = 2 };

struct control {
    int64_t error;  /* errno; 0 counts nothing and fails nothing */
    int64_t first;  /* the first call that fails, from 0 */
    int64_t count;  /* how many fail */
    int64_t kinds;  /* READS, WRITES or both */
    int64_t calls;  /* counted so far */
    int64_t failed; /* failed so far */
};

static struct control *control;
static const char *folder;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTY_DISK");
    folder = getenv("FAULTY_FOLDER");
    if (!path || !folder) return;
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int file = real(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) control = mapped;
    close(file);
}

static int fails(int kind) {
    if (!control->error || !(control->kinds & kind)) return 0;
    int64_t number = __sync_fetch_and_add(&control->calls, 1);
    if (number < control->first || number - control->first >= control->count) return 0;
    __sync_fetch_and_add(&control->failed, 1);
    errno = (int)control->error;
    return 1;
}

static int is_inside(const char *path) {
    size_t length = strlen(folder);
    return !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

static int is_file_inside(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_inside(path);
}

static int at_fails(int base, const char *path, int kind) {
    if (!control || !path) return 0;
    int saved = errno;
    int found = path[0] == '/' ? is_inside(path) : base != AT_FDCWD && is_file_inside(base);
    errno = saved;
    return found && fails(kind);
}

static int file_fails(int file, int kind) {
    if (!control || !control->error) return 0;
    int saved = errno;
    int found = is_file_inside(file);
    errno = saved;
    return found && fails(kind);
}

static int kind_of(int flags) {
    return (flags & O_ACCMODE) == O_RDONLY && !(flags & O_CREAT) ? READS : WRITES;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        REAL(name); \
        return at_fails(AT_FDCWD, path, kind_of(flags)) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int base, const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        REAL(name); \
        return at_fails(base, path, kind_of(flags)) ? -1 : real(base, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

#define BY_FILE(result, name, kind, parameters, arguments) \
    result name parameters { \
        REAL(name); \
        return file_fails(file, kind) ? -1 : real arguments; \
    }
BY_FILE(ssize_t, read, READS, (int file, void *to, size_t size), (file, to, size))
BY_FILE(ssize_t, pread, READS, (int file, void *to, size_t size, off_t at), (file, to, size, at))
BY_FILE(ssize_t, pread64, READS, (int file, void *to, size_t size, off64_t at), (file, to, size, at))
BY_FILE(ssize_t, write, WRITES, (int file, const void *from, size_t size), (file, from, size))
BY_FILE(ssize_t, pwrite, WRITES, (int file, const void *from, size_t size, off_t at),
        (file, from, size, at))
BY_FILE(ssize_t, pwrite64, WRITES, (int file, const void *from, size_t size, off64_t at),
        (file, from, size, at))
BY_FILE(int, fsync, WRITES, (int file), (file))
BY_FILE(int, fdatasync, WRITES, (int file), (file))
BY_FILE(int, ftruncate, WRITES, (int file, off_t size), (file, size))
BY_FILE(int, ftruncate64, WRITES, (int file, off64_t size), (file, size))

#define FALLOCATE(name, offset) \
    int name(int file, offset at, offset size) { \
        REAL(name); \
        return file_fails(file, WRITES) ? errno : real(file, at, size); \
    }
FALLOCATE(posix_fallocate, off_t)
FALLOCATE(posix_fallocate64, off64_t)

int rename(const char *from, const char *to) {
    REAL(rename);
    return at_fails(AT_FDCWD, to, WRITES) ? -1 : real(from, to);
}

int renameat(int base, const char *from, int other, const char *to) {
    REAL(renameat);
    return at_fails(other, to, WRITES) ? -1 : real(base, from, other, to);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return at_fails(AT_FDCWD, path, WRITES) ? -1 : real(path, mode);
}

int unlink(const char *path) {
    REAL(unlink);
    return at_fails(AT_FDCWD, path, WRITES) ? -1 : real(path);
}

int unlinkat(int base, const char *path, int flags) {
    REAL(unlinkat);
    return at_fails(base, path, WRITES) ? -1 : real(base, path, flags);
}

DIR *opendir(const char *path) {
    REAL(opendir);
    return at_fails(AT_FDCWD, path, READS) ? NULL : real(path);
}
