/* SPDX-License-Identifier: Apache-2.0 */
#include "server/log_writer.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct log_writer {
    int fd;
    log_tell_dropped *tell;
    pthread_mutex_t mutex;
    pthread_cond_t more, empty; /* there are lines; all are written */
    char *ring;                 /* [size] */
    size_t size, first, used;   /* used: also what the thread is writing */
    uint64_t dropped;
    bool untold; /* some were dropped since a line told of it */
    /* The thread's own: what was written last ends within a line; after that a write failed. */
    bool within, failed;
};

/* ---- the ring; the caller holds the mutex ---- */

static void append(struct log_writer *writer, const char *bytes, size_t length)
{
    size_t at = (writer->first + writer->used) % writer->size;
    size_t before_end = writer->size - at < length ? writer->size - at : length;
    memcpy(writer->ring + at, bytes, before_end);
    memcpy(writer->ring, bytes + before_end, length - before_end);
    writer->used += length;
    pthread_cond_signal(&writer->more);
}

static void tell(struct log_writer *writer)
{
    char text[LOG_TOLD_BYTES];
    if (!writer->untold || writer->size - writer->used < LOG_TOLD_BYTES)
        return;
    append(writer, text, writer->tell(writer->dropped, text));
    writer->untold = false;
}

static void drop(struct log_writer *writer, uint64_t lines)
{
    writer->dropped += lines;
    writer->untold |= lines > 0;
}

/* Copies the first lines to `chunk`, as many whole ones as PIPE_BUF bytes hold, so that those of
 * other processes do not cut them, or the first PIPE_BUF bytes of a longer one. */
static size_t first_lines(const struct log_writer *writer, char *chunk)
{
    size_t length = writer->used < PIPE_BUF ? writer->used : PIPE_BUF;
    size_t before_end = writer->size - writer->first;
    before_end = before_end < length ? before_end : length;
    memcpy(chunk, writer->ring + writer->first, before_end);
    memcpy(chunk + before_end, writer->ring, length - before_end);
    const char *last = memrchr(chunk, '\n', length);
    return last ? (size_t)(last - chunk) + 1 : length;
}

/* ---- the thread ---- */

/* Returns how many bytes could be written. */
static size_t write_all(int fd, const char *bytes, size_t length)
{
    size_t written = 0;
    while (written < length) {
        ssize_t put = write(fd, bytes + written, length - written);
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        if (put >= 0)
            written += (size_t)put;
        else if (errno == EAGAIN) /* whoever started us has made it so */
            poll(&ready, 1, -1);
        else if (errno != EINTR)
            break;
    }
    return written;
}

/* write_all; the rest of a line that could not be written whole is not joined to the next one. */
static size_t write_chunk(struct log_writer *writer, const char *chunk, size_t length)
{
    if (writer->within && writer->failed) {
        if (write_all(writer->fd, "\n", 1) != 1)
            return 0;
        writer->within = false;
    }
    size_t written = write_all(writer->fd, chunk, length);
    writer->failed = written < length;
    if (written > 0)
        writer->within = chunk[written - 1] != '\n';
    return written;
}

static uint64_t count_lines(const char *bytes, size_t length)
{
    uint64_t lines = 0;
    for (size_t i = 0; i < length; i++)
        lines += bytes[i] == '\n';
    return lines;
}

static void *writer_main(void *context)
{
    struct log_writer *writer = context;
    char chunk[PIPE_BUF];
    pthread_setname_np(pthread_self(), "regla-log");
    pthread_mutex_lock(&writer->mutex);
    for (;;) {
        while (writer->used == 0)
            pthread_cond_wait(&writer->more, &writer->mutex);
        size_t length = first_lines(writer, chunk);
        pthread_mutex_unlock(&writer->mutex);
        size_t written = write_chunk(writer, chunk, length);
        pthread_mutex_lock(&writer->mutex);
        writer->first = (writer->first + length) % writer->size;
        writer->used -= length;
        drop(writer, count_lines(chunk + written, length - written));
        if (written == length) /* else it could not be written either */
            tell(writer);
        if (writer->used == 0)
            pthread_cond_broadcast(&writer->empty);
    }
    return NULL;
}

/* ---- for others ---- */

int log_writer_start(struct log_writer **out, int fd, size_t bytes, log_tell_dropped *tell_dropped,
                     struct error *err)
{
    struct log_writer *writer = calloc(1, sizeof *writer);
    char *ring = malloc(bytes);
    if (!writer || !ring) {
        free(writer);
        free(ring);
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the log");
    }
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&writer->mutex, NULL);
    pthread_cond_init(&writer->more, NULL);
    pthread_cond_init(&writer->empty, &clock);
    pthread_condattr_destroy(&clock);
    writer->fd = fd;
    writer->tell = tell_dropped;
    writer->ring = ring;
    writer->size = bytes;
    pthread_t thread;
    int code = pthread_create(&thread, NULL, writer_main, writer);
    if (code) {
        free(ring);
        free(writer);
        return error_set(err, ERROR_IO, "cannot start a thread: %s", strerror(code));
    }
    pthread_detach(thread);
    *out = writer;
    return 0;
}

void log_writer_put(struct log_writer *writer, const char *line, size_t length)
{
    pthread_mutex_lock(&writer->mutex);
    tell(writer);
    /* While lines are being dropped, the next ones are too until their number can be told: the log
     * says where they are missing. */
    if (!writer->untold && length <= writer->size - writer->used)
        append(writer, line, length);
    else
        drop(writer, 1);
    pthread_mutex_unlock(&writer->mutex);
}

uint64_t log_writer_dropped(struct log_writer *writer)
{
    pthread_mutex_lock(&writer->mutex);
    uint64_t dropped = writer->dropped;
    pthread_mutex_unlock(&writer->mutex);
    return dropped;
}

bool log_writer_flush(struct log_writer *writer, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t nanos = (int64_t)(seconds * 1e9) + until.tv_nsec;
    until.tv_sec += nanos / 1000000000;
    until.tv_nsec = nanos % 1000000000;
    int code = 0;
    pthread_mutex_lock(&writer->mutex);
    while (writer->used > 0 && code == 0)
        code = pthread_cond_timedwait(&writer->empty, &writer->mutex, &until);
    bool written = writer->used == 0;
    pthread_mutex_unlock(&writer->mutex);
    return written;
}
