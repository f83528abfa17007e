/* SPDX-License-Identifier: Apache-2.0 */
/* The file: a page with struct file_header; the weights, each from a page's beginning on, as they
 * lie in memory; and the table, struct file_entry for each. Numbers are little-endian. */
#include "engine/cpu/kernels.h"
#include "engine/cpu/residence.h"
#include "lib/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* PAGE: of every system that the engine runs on, or some of its pages. LAYOUT: of struct weight;
 * another one where that changes. */
enum { PAGE = 65536, LAYOUT = 2 };
static const char MAGIC[8] = "reglapak";

struct file_header {
    char magic[8];
    uint32_t layout, number;
    unsigned char owner[RESIDENCE_OWNER_BYTES];
    uint64_t count, table, size; /* of entries; where they begin; of the file */
};

struct file_entry {
    uint32_t format;
    int32_t heads;
    int64_t in, out;
    uint64_t offset, bytes;
};

struct file_residence {
    struct residence base;
    char *path, *partial; /* the file, and where it is made until it is whole */
    uint32_t number;
    uint64_t placed; /* weights so far */

    struct file_map map; /* of a file that is there; no bytes: it is made, by these: */
    int fd;
    struct file_entry *entries; /* [capacity] */
    uint64_t capacity, end;     /* of the file so far */
};

static struct file_residence *of(struct residence *base)
{
    return (struct file_residence *)base;
}

static const struct file_header *header_of(const struct file_residence *residence)
{
    return (const struct file_header *)(const void *)residence->map.bytes;
}

static struct file_entry entry_of(const struct weight *weight, uint64_t offset)
{
    return (struct file_entry){.format = (uint32_t)weight->format,
                               .heads = weight->heads,
                               .in = weight->in,
                               .out = weight->out,
                               .offset = offset,
                               .bytes = weight->bytes};
}

static uint64_t pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* ---- a file that is there ---- */

static int other(const struct file_residence *residence, struct error *err)
{
    return error_set(err, ERROR_INVALID,
                     "%s: expected this model's weights as they are packed now, got others; remove "
                     "it to have it made anew",
                     residence->path);
}

static int check_header(const struct file_residence *residence, struct error *err)
{
    const struct file_header *header = header_of(residence);
    const size_t size = residence->map.size;
    if (size < PAGE || memcmp(header->magic, MAGIC, sizeof MAGIC) != 0)
        return error_set(err, ERROR_INVALID, "%s: expected packed weights, got another file",
                         residence->path);
    if (header->layout != LAYOUT || header->number != residence->number)
        return other(residence, err);
    if (header->size != size || header->table > size || header->table % PAGE != 0 ||
        header->count > (size - header->table) / sizeof(struct file_entry))
        return error_set(err, ERROR_INVALID, "%s: expected %llu bytes, got %zu", residence->path,
                         (unsigned long long)header->size, size);
    return 0;
}

/* The weight that comes next must be the file's next. */
static int place_mapped(struct file_residence *residence, struct weight *weight, struct error *err)
{
    const struct file_header *header = header_of(residence);
    const struct file_entry *table =
        (const struct file_entry *)(const void *)(residence->map.bytes + header->table);
    if (residence->placed >= header->count)
        return other(residence, err);
    const struct file_entry *entry = &table[residence->placed++];
    const struct file_entry expected = entry_of(weight, entry->offset);
    if (memcmp(entry, &expected, sizeof expected) != 0)
        return other(residence, err);
    if (entry->offset % PAGE != 0 || entry->offset > header->table ||
        entry->bytes > header->table - entry->offset)
        return error_set(err, ERROR_INVALID, "%s: weight %llu: expected it before the table",
                         residence->path, (unsigned long long)residence->placed - 1);
    weight->data = (unsigned char *)(uintptr_t)(residence->map.bytes + entry->offset);
    return 0;
}

/* ---- a file that is made ---- */

static int failed(const struct file_residence *residence, struct error *err)
{
    return error_set(err, ERROR_IO, "%s: cannot write: %s", residence->partial, strerror(errno));
}

static int place_new(struct file_residence *residence, struct weight *weight, struct error *err)
{
    if (residence->placed == residence->capacity) {
        const uint64_t capacity = 2 * residence->capacity + 64;
        struct file_entry *entries = realloc(residence->entries, capacity * sizeof *entries);
        if (entries == NULL)
            return error_set(err, ERROR_NO_MEMORY, "%s: no memory", residence->path);
        residence->entries = entries;
        residence->capacity = capacity;
    }
    const uint64_t offset = residence->end, bytes = pages(weight->bytes);
    /* room on the disk now: a write into a mapping without it would end the process */
    const int code = posix_fallocate(residence->fd, (off_t)offset, (off_t)bytes);
    if (code != 0) {
        errno = code;
        return failed(residence, err);
    }
    void *data =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, residence->fd, (off_t)offset);
    if (data == MAP_FAILED)
        return failed(residence, err);
    weight->data = data;
    residence->entries[residence->placed++] = entry_of(weight, offset);
    residence->end = offset + bytes;
    return 0;
}

static bool write_all(int fd, const void *bytes, size_t size, uint64_t offset)
{
    for (size_t done = 0; done < size;) {
        const ssize_t n =
            pwrite(fd, (const char *)bytes + done, size - done, (off_t)(offset + done));
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

static int write_file(struct file_residence *residence, const unsigned char *owner,
                      struct error *err)
{
    const size_t table = (size_t)residence->placed * sizeof *residence->entries;
    struct file_header header = {.layout = LAYOUT,
                                 .number = residence->number,
                                 .count = residence->placed,
                                 .table = residence->end,
                                 .size = residence->end + table};
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    memcpy(header.owner, owner, sizeof header.owner);
    if (!write_all(residence->fd, residence->entries, table, residence->end) ||
        !write_all(residence->fd, &header, sizeof header, 0) || fsync(residence->fd) != 0)
        return failed(residence, err);
    if (rename(residence->partial, residence->path) != 0)
        return error_set(err, ERROR_IO, "%s: cannot make it: %s", residence->path, strerror(errno));
    close(residence->fd);
    residence->fd = -1;
    return 0;
}

/* ---- the residence ---- */

static int place(struct residence *base, struct weight *weight, bool *packed, struct error *err)
{
    struct file_residence *residence = of(base);
    *packed = residence->map.bytes != NULL;
    return *packed ? place_mapped(residence, weight, err) : place_new(residence, weight, err);
}

static void leave(struct residence *base, struct weight *weight)
{
    if (of(base)->map.bytes == NULL && weight->data != NULL)
        munmap(weight->data, pages(weight->bytes));
}

static int settle(struct residence *base, const unsigned char owner[RESIDENCE_OWNER_BYTES],
                  struct error *err)
{
    struct file_residence *residence = of(base);
    if (residence->map.bytes == NULL)
        return write_file(residence, owner, err);
    const struct file_header *header = header_of(residence);
    if (residence->placed != header->count ||
        memcmp(header->owner, owner, sizeof header->owner) != 0)
        return other(residence, err);
    return 0;
}

static void close_file(struct residence *base)
{
    struct file_residence *residence = of(base);
    file_map_close(&residence->map);
    if (residence->fd >= 0) { /* it is not whole; it goes before the lock does */
        unlink(residence->partial);
        close(residence->fd);
    }
    free(residence->entries);
    free(residence->partial);
    free(residence->path);
    free(residence);
}

static const struct residence_kind in_file = {place, leave, settle, close_file};

/* Opens the file where it is made, which nobody else makes now, and whose beginnings nobody needs
 * that a killed process has left. */
static int open_partial(struct file_residence *residence, struct error *err)
{
    struct stat opened, there;
    residence->fd = open(residence->partial, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (residence->fd < 0)
        return failed(residence, err);
    /* who made it until now may have given it its name, with the lock still to be had */
    if (flock(residence->fd, LOCK_EX | LOCK_NB) != 0 || fstat(residence->fd, &opened) != 0 ||
        stat(residence->partial, &there) != 0 || opened.st_ino != there.st_ino ||
        opened.st_dev != there.st_dev) {
        close(residence->fd);
        residence->fd = -1;
        return error_set(err, ERROR_IO, "%s: another process makes it now", residence->path);
    }
    return ftruncate(residence->fd, 0) == 0 ? 0 : failed(residence, err);
}

int residence_open_file(struct residence **out, const char *path, uint32_t number,
                        struct error *err)
{
    struct file_residence *residence = calloc(1, sizeof *residence);
    if (residence == NULL)
        return error_set(err, ERROR_NO_MEMORY, "%s: no memory", path);
    *out = &residence->base;
    residence->base.kind = &in_file;
    residence->number = number;
    residence->fd = -1;
    residence->end = PAGE;
    residence->path = strdup(path);
    if (residence->path == NULL || asprintf(&residence->partial, "%s.partial", path) < 0) {
        residence->partial = NULL;
        return error_set(err, ERROR_NO_MEMORY, "%s: no memory", path);
    }
    if (file_exists(path))
        return file_map_open(&residence->map, path, err) != 0 ? -1 : check_header(residence, err);
    return open_partial(residence, err);
}
