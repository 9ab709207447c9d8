// Loaded before the C library (LD_PRELOAD), this makes operations on files fail at a chosen point. REFOLD_FAULT is
//   kill:N      the process is killed right before its Nth operation: a file made, written, flushed, renamed, removed
//   full:N      the disk has room for N more bytes, then every write to a file ends with ENOSPC
//   count:FILE  nothing fails; at its end the process writes "OPERATIONS BYTES" to FILE
// Standard streams do not count. With REFOLD_NO_EXCHANGE the file system cannot exchange two folders.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long g_operations, g_bytes;

static const char* fault(const char* kind) {
    const char* value = getenv("REFOLD_FAULT");
    const size_t length = strlen(kind);
    return value != NULL && strncmp(value, kind, length) == 0 ? value + length : NULL;
}

static void operation(void) {
    const long now = ++g_operations;
    const char* at = fault("kill:");
    if (at != NULL && now >= atol(at)) kill(getpid(), SIGKILL);
}

static int is_file(int descriptor) {
    struct stat status;
    return descriptor > 2 && fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

// How many of `size` bytes there is room for; -1 with errno set if none.
static ssize_t room(size_t size) {
    const char* at = fault("full:");
    const long before = atomic_fetch_add(&g_bytes, (long)size);
    if (at == NULL) return (ssize_t)size;
    const long left = atol(at) - before;
    if (left <= 0) {
        errno = ENOSPC;
        return -1;
    }
    return left < (long)size ? left : (ssize_t)size;
}

static void* next(const char* name) { return dlsym(RTLD_NEXT, name); }

ssize_t write(int descriptor, const void* data, size_t size) {
    if (is_file(descriptor)) {
        operation();
        const ssize_t fits = room(size);
        if (fits < 0) return -1;
        size = (size_t)fits;
    }
    return ((ssize_t(*)(int, const void*, size_t))next("write"))(descriptor, data, size);
}

ssize_t writev(int descriptor, const struct iovec* parts, int count) {
    if (!is_file(descriptor)) return ((ssize_t(*)(int, const struct iovec*, int))next("writev"))(descriptor, parts, count);
    ssize_t all = 0;
    for (int i = 0; i < count; ++i) {
        const ssize_t written = write(descriptor, parts[i].iov_base, parts[i].iov_len);
        if (written < 0) return all > 0 ? all : -1;
        all += written;
        if ((size_t)written < parts[i].iov_len) break;
    }
    return all;
}

static ssize_t write_at(const char* name, int descriptor, const void* data, size_t size, off64_t at) {
    operation();
    const ssize_t fits = room(size);
    if (fits < 0) return -1;
    return ((ssize_t(*)(int, const void*, size_t, off64_t))next(name))(descriptor, data, (size_t)fits, at);
}
ssize_t pwrite(int descriptor, const void* data, size_t size, off_t at) {
    return write_at("pwrite", descriptor, data, size, at);
}
ssize_t pwrite64(int descriptor, const void* data, size_t size, off64_t at) {
    return write_at("pwrite64", descriptor, data, size, at);
}

#define OPEN(name)                                                             \
    int name(const char* path, int flags, ...) {                               \
        va_list more;                                                          \
        va_start(more, flags);                                                 \
        const int mode = va_arg(more, int);                                    \
        va_end(more);                                                          \
        if ((flags & O_CREAT) != 0) operation();                               \
        return ((int (*)(const char*, int, ...))next(#name))(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

int fsync(int descriptor) {
    operation();
    return ((int (*)(int))next("fsync"))(descriptor);
}
int rename(const char* from, const char* to) {
    operation();
    return ((int (*)(const char*, const char*))next("rename"))(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
    operation();
    if (flags == RENAME_EXCHANGE && getenv("REFOLD_NO_EXCHANGE") != NULL) {
        errno = EINVAL;
        return -1;
    }
    return ((int (*)(int, const char*, int, const char*, unsigned))next("renameat2"))(from_folder, from, to_folder, to,
                                                                                     flags);
}
int mkdir(const char* path, mode_t mode) {
    operation();
    return ((int (*)(const char*, mode_t))next("mkdir"))(path, mode);
}
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
    operation();
    return ((int (*)(int, const char*, int, const char*, int))next("linkat"))(from_folder, from, to_folder, to, flags);
}
int chmod(const char* path, mode_t mode) {
    operation();
    return ((int (*)(const char*, mode_t))next("chmod"))(path, mode);
}
int unlink(const char* path) {
    operation();
    return ((int (*)(const char*))next("unlink"))(path);
}

__attribute__((destructor)) static void tell(void) {
    const char* path = fault("count:");
    if (path == NULL) return;
    FILE* out = fopen(path, "w");
    if (out == NULL) return;
    fprintf(out, "%ld %ld\n", atomic_load(&g_operations), atomic_load(&g_bytes));
    fclose(out);
}
