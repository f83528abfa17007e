/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into the server (faults.py): makes the n-th write, sync, rename, open, unlink or
 * allocation fail, and syncs slow, as the file FAULT_CTL says while it runs. An embedded database
 * calls fdatasync, pwrite and open. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
struct ctl {
    atomic_int op, n, err, pad;
    atomic_long count, fired, delay, syncs; /* syncs: that are under way */
};
enum { W = 1, F = 2, R = 4, O = 8, U = 16, S = 32, M = 64, RD = 128 };
static struct ctl none, *ctl = &none;
#define REAL(name)                 \
    static __typeof__(name) *real; \
    if (!real)                     \
    real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
int open(const char *, int, ...);
__attribute__((constructor)) static void start(void)
{
    const char *p = getenv("FAULT_CTL");
    if (!p)
        return;
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    int fd = real(p, O_RDWR);
    if (fd < 0)
        return;
    void *m = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (m != MAP_FAILED)
        ctl = m;
}
static int hit(int op)
{
    if (!(ctl->op & op) || ctl->n <= 0 || (atomic_fetch_add(&ctl->count, 1) + 1) % ctl->n)
        return 0;
    ctl->fired++;
    errno = ctl->err;
    return 1;
}
static int regular(int fd)
{
    struct stat s;
    int e = errno, r = fd > 2 && !fstat(fd, &s) && S_ISREG(s.st_mode);
    errno = e;
    return r;
}
#define WRITE(name, args, call)                   \
    ssize_t name args                             \
    {                                             \
        REAL(name);                               \
        if (ctl->op & W && regular(fd) && hit(W)) \
            return -1;                            \
        return real call;                         \
    }
WRITE(pwrite, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o))
WRITE(pwrite64, (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o))
WRITE(writev, (int fd, const struct iovec *v, int n), (fd, v, n))
WRITE(pwritev, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o))
ssize_t write(int fd, const void *b, size_t n)
{
    REAL(write);
    if (ctl->op & (W | S) && regular(fd)) {
        if (hit(W))
            return -1;
        if (n > 1 && hit(S))
            return real(fd, b, n / 2);
    }
    return real(fd, b, n);
}
#define SYNC(name, args, call)           \
    int name args                        \
    {                                    \
        REAL(name);                      \
        ctl->syncs++;                    \
        if (ctl->delay)                  \
            usleep(ctl->delay);          \
        int r = hit(F) ? -1 : real call; \
        ctl->syncs--;                    \
        return r;                        \
    }
SYNC(fsync, (int fd), (fd))
SYNC(fdatasync, (int fd), (fd))
SYNC(syncfs, (int fd), (fd))
SYNC(sync_file_range, (int fd, off64_t o, off64_t n, unsigned f), (fd, o, n, f))
int msync(void *a, size_t n, int f)
{
    REAL(msync);
    if (ctl->delay && f & MS_SYNC)
        usleep(ctl->delay);
    if (hit(F))
        return -1;
    return real(a, n, f);
}
int rename(const char *a, const char *b)
{
    REAL(rename);
    if (hit(R))
        return -1;
    return real(a, b);
}
int renameat(int a, const char *b, int c, const char *d)
{
    REAL(renameat);
    if (hit(R))
        return -1;
    return real(a, b, c, d);
}
int unlink(const char *b)
{
    REAL(unlink);
    if (hit(U))
        return -1;
    return real(b);
}
int unlinkat(int a, const char *b, int f)
{
    REAL(unlinkat);
    if (hit(U))
        return -1;
    return real(a, b, f);
}
#define OPEN(name, args, call)         \
    int name args                      \
    {                                  \
        REAL(name);                    \
        va_list ap;                    \
        va_start(ap, f);               \
        mode_t m = va_arg(ap, mode_t); \
        va_end(ap);                    \
        if (hit(O))                    \
            return -1;                 \
        return real call;              \
    }
OPEN(open, (const char *p, int f, ...), (p, f, m))
OPEN(open64, (const char *p, int f, ...), (p, f, m))
OPEN(openat, (int d, const char *p, int f, ...), (d, p, f, m))
OPEN(openat64, (int d, const char *p, int f, ...), (d, p, f, m))
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *malloc(size_t n)
{
    return ctl->op & M && hit(M) ? 0 : __libc_malloc(n);
}
void *calloc(size_t a, size_t b)
{
    return ctl->op & M && hit(M) ? 0 : __libc_calloc(a, b);
}
void *realloc(void *p, size_t n)
{
    return ctl->op & M && n && hit(M) ? 0 : __libc_realloc(p, n);
}
