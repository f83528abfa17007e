/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between host and device, through pinned memory.
 *
 * In: two pieces take turns; while one is being copied, the host fills the other. The host's memory
 * may be used again at once, and only a busy piece makes anyone wait.
 *
 * Out: saved memory goes through pieces in a ring. Each piece is device memory and pinned memory.
 * In the backend's stream the memory is copied aside, so that later operations may overwrite it. In
 * a second stream it goes to pinned memory. A thread of its own, the only one that waits for the
 * device, copies it to its place. So a save waits only when all pieces are in use, and whoever
 * needs the result waits for the thread. */
#include "engine/cuda/transfer.h"

#include "engine/cuda/common.cuh"

#include <pthread.h>

enum {
    PIECE_BYTES = 4 << 20,
    PIECES = 8 /* of what is saved, on their way at once */
};

/* A part of something saved, or its end. */
struct piece {
    char *to;
    size_t bytes;
    struct ops_save save; /* of which it is the last part: to `there`, if that is not NULL */
    cudaEvent_t arrived;  /* in pinned memory */
};

struct transfer {
    int device;
    void *in[2]; /* pinned */
    cudaEvent_t in_done[2];

    char *aside, *pinned; /* [PIECES * PIECE_BYTES] on the device, of the host */
    cudaStream_t stream;
    cudaEvent_t copied; /* aside */
    size_t filled;      /* bytes of the piece that is next */
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex; /* guards what follows; a piece is the thread's once it is queued */
    pthread_cond_t has_queued, has_arrived;
    struct piece pieces[PIECES];
    uint64_t queued, arrived; /* pieces, so far: piece number n is the n-th, from 1 on */
    uint64_t first_lost;      /* none from here on arrives: the device failed */
    cudaError_t failure;      /* as the thread saw it */
    bool closing;
};

static int fail(struct backend *backend, cudaError_t failure, struct error *err)
{
    return error_set(err, ERROR_INTERNAL, "cuda:%d (%s) failed: a copy to the host: %s",
                     backend->device, backend->name, cudaGetErrorString(failure));
}

/* ---- the thread ---- */

/* Copies a piece to its place once it has arrived. */
static cudaError_t land(const struct piece *piece, const char *pinned)
{
    cudaError_t error = cudaEventSynchronize(piece->arrived);
    if (error != cudaSuccess)
        return error;
    memcpy(piece->to, pinned, piece->bytes);
    if (piece->save.there != NULL)
        piece->save.there(&piece->save);
    return cudaSuccess;
}

static void *transfer_main(void *context)
{
    struct transfer *transfer = static_cast<struct transfer *>(context);
    pthread_setname_np(pthread_self(), "regla-copies");
    cudaSetDevice(transfer->device); /* where it fails, so does what follows */
    pthread_mutex_lock(&transfer->mutex);
    for (;;) {
        while (transfer->arrived == transfer->queued && !transfer->closing)
            pthread_cond_wait(&transfer->has_queued, &transfer->mutex);
        if (transfer->arrived == transfer->queued)
            break;
        size_t i = transfer->arrived % PIECES;
        if (transfer->arrived + 1 < transfer->first_lost) {
            pthread_mutex_unlock(&transfer->mutex);
            cudaError_t error = land(&transfer->pieces[i], transfer->pinned + i * PIECE_BYTES);
            pthread_mutex_lock(&transfer->mutex);
            if (error != cudaSuccess) {
                transfer->failure = error;
                transfer->first_lost = transfer->arrived + 1;
            }
        }
        transfer->arrived++;
        pthread_cond_broadcast(&transfer->has_arrived);
    }
    pthread_mutex_unlock(&transfer->mutex);
    return NULL;
}

/* ---- opening ---- */

static bool open_in(struct backend *backend, struct transfer *transfer)
{
    for (int i = 0; i < 2; i++)
        if (!device_pin(backend, PIECE_BYTES, &transfer->in[i]) ||
            !device_check(backend,
                          cudaEventCreateWithFlags(&transfer->in_done[i], cudaEventDisableTiming),
                          "cudaEventCreate"))
            return false;
    return true;
}

static int open_out(struct backend *backend, struct transfer *transfer, struct error *err)
{
    void *aside, *pinned;
    if (device_allocate(backend, (size_t)PIECES * PIECE_BYTES, "copies to the host", &aside, err) !=
        0)
        return -1;
    transfer->aside = static_cast<char *>(aside);
    if (!device_pin(backend, (size_t)PIECES * PIECE_BYTES, &pinned))
        return device_status(backend, err);
    transfer->pinned = static_cast<char *>(pinned);
    if (!device_check(backend, cudaStreamCreateWithFlags(&transfer->stream, cudaStreamNonBlocking),
                      "cudaStreamCreate") ||
        !device_check(backend, cudaEventCreateWithFlags(&transfer->copied, cudaEventDisableTiming),
                      "cudaEventCreate"))
        return device_status(backend, err);
    for (struct piece &piece : transfer->pieces) /* the thread sleeps while it waits */
        if (!device_check(backend,
                          cudaEventCreateWithFlags(&piece.arrived,
                                                   cudaEventDisableTiming | cudaEventBlockingSync),
                          "cudaEventCreate"))
            return device_status(backend, err);
    int code = pthread_create(&transfer->thread, NULL, transfer_main, transfer);
    if (code != 0)
        return error_set(err, ERROR_NO_MEMORY, "cuda: cannot start a thread: %s", strerror(code));
    transfer->started = true;
    return 0;
}

int transfer_open(struct backend *backend, struct error *err)
{
    struct transfer *transfer = static_cast<struct transfer *>(calloc(1, sizeof *transfer));
    if (transfer == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cuda: no memory");
    backend->transfer = transfer;
    transfer->device = backend->device;
    transfer->first_lost = UINT64_MAX;
    pthread_mutex_init(&transfer->mutex, NULL);
    pthread_cond_init(&transfer->has_queued, NULL);
    pthread_cond_init(&transfer->has_arrived, NULL);
    if (!open_in(backend, transfer))
        return device_status(backend, err);
    return open_out(backend, transfer, err);
}

void transfer_close(struct backend *backend)
{
    struct transfer *transfer = backend->transfer;
    if (transfer == NULL)
        return;
    pthread_mutex_lock(&transfer->mutex);
    transfer->closing = true;
    pthread_cond_signal(&transfer->has_queued);
    pthread_mutex_unlock(&transfer->mutex);
    if (transfer->started)
        pthread_join(transfer->thread, NULL);
    for (int i = 0; i < 2; i++) {
        if (transfer->in_done[i] != NULL)
            cudaEventDestroy(transfer->in_done[i]);
        device_unpin(transfer->in[i]);
    }
    for (const struct piece &piece : transfer->pieces)
        if (piece.arrived != NULL)
            cudaEventDestroy(piece.arrived);
    if (transfer->copied != NULL)
        cudaEventDestroy(transfer->copied);
    if (transfer->stream != NULL)
        cudaStreamDestroy(transfer->stream);
    cudaFree(transfer->aside);
    device_unpin(transfer->pinned);
    pthread_cond_destroy(&transfer->has_arrived);
    pthread_cond_destroy(&transfer->has_queued);
    pthread_mutex_destroy(&transfer->mutex);
    free(transfer);
}

/* ---- in ---- */

void cuda_copy_in(struct backend *backend, void *to, const void *from, size_t bytes)
{
    struct transfer *transfer = backend->transfer;
    device_use(backend);
    for (size_t at = 0, i = 0; at < bytes; at += PIECE_BYTES, i = 1 - i) {
        size_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        /* the piece's last copy, of this call or one before */
        device_check(backend, cudaEventSynchronize(transfer->in_done[i]), "cudaEventSynchronize");
        memcpy(transfer->in[i], static_cast<const char *>(from) + at, n);
        device_check(backend,
                     cudaMemcpyAsync(static_cast<char *>(to) + at, transfer->in[i], n,
                                     cudaMemcpyHostToDevice, backend->stream),
                     "cudaMemcpy");
        device_check(backend, cudaEventRecord(transfer->in_done[i], backend->stream),
                     "cudaEventRecord");
    }
}

/* ---- out ---- */

/* Waits until the next piece is free: the one that used it before has arrived. */
static size_t take_piece(struct transfer *transfer)
{
    pthread_mutex_lock(&transfer->mutex);
    while (transfer->queued - transfer->arrived == PIECES)
        pthread_cond_wait(&transfer->has_arrived, &transfer->mutex);
    size_t i = transfer->queued % PIECES;
    pthread_mutex_unlock(&transfer->mutex);
    return i;
}

/* Starts to copy the next piece to `to`; returns its number. last: the save that ends with it, or
 * NULL. */
static uint64_t send_piece(struct backend *backend, char *to, const struct ops_save *last)
{
    struct transfer *transfer = backend->transfer;
    size_t i = take_piece(transfer), at = i * PIECE_BYTES;
    struct piece *piece = &transfer->pieces[i];
    *piece = {to, transfer->filled, last != NULL ? *last : ops_save(), piece->arrived};
    /* behind the copies aside; their piece has arrived when it is filled again */
    device_check(backend, cudaEventRecord(transfer->copied, backend->stream), "cudaEventRecord");
    device_check(backend, cudaStreamWaitEvent(transfer->stream, transfer->copied, 0),
                 "cudaStreamWaitEvent");
    if (piece->bytes > 0)
        device_check(backend,
                     cudaMemcpyAsync(transfer->pinned + at, transfer->aside + at, piece->bytes,
                                     cudaMemcpyDeviceToHost, transfer->stream),
                     "cudaMemcpy");
    device_check(backend, cudaEventRecord(piece->arrived, transfer->stream), "cudaEventRecord");
    transfer->filled = 0;
    pthread_mutex_lock(&transfer->mutex);
    uint64_t number = ++transfer->queued;
    if (backend->failure != cudaSuccess && transfer->first_lost > number) {
        transfer->first_lost = number;
        transfer->failure = backend->failure;
    }
    pthread_cond_signal(&transfer->has_queued);
    pthread_mutex_unlock(&transfer->mutex);
    return number;
}

/* Adds device memory to the copy to *to, which advances with every full piece. */
static void put(struct backend *backend, char **to, const char *from, size_t bytes)
{
    struct transfer *transfer = backend->transfer;
    while (bytes > 0) {
        if (transfer->filled == PIECE_BYTES) {
            send_piece(backend, *to, NULL);
            *to += PIECE_BYTES;
        }
        char *aside = transfer->aside + take_piece(transfer) * PIECE_BYTES + transfer->filled;
        size_t room = PIECE_BYTES - transfer->filled, n = bytes < room ? bytes : room;
        device_check(backend,
                     cudaMemcpyAsync(aside, from, n, cudaMemcpyDeviceToDevice, backend->stream),
                     "cudaMemcpy");
        transfer->filled += n;
        from += n;
        bytes -= n;
    }
}

uint64_t cuda_save(struct backend *backend, const struct ops_save *save)
{
    char *to = static_cast<char *>(save->to);
    device_use(backend);
    put(backend, &to, save->head, save->head_bytes);
    for (int64_t i = 0; i < save->num_pages; i++)
        put(backend, &to, save->pages[i], save->page_bytes);
    return send_piece(backend, to, save);
}

int cuda_save_wait(struct backend *backend, uint64_t number, struct error *err)
{
    struct transfer *transfer = backend->transfer;
    pthread_mutex_lock(&transfer->mutex);
    while (transfer->arrived < number)
        pthread_cond_wait(&transfer->has_arrived, &transfer->mutex);
    cudaError_t failure = number < transfer->first_lost ? cudaSuccess : transfer->failure;
    pthread_mutex_unlock(&transfer->mutex);
    return failure == cudaSuccess ? 0 : fail(backend, failure, err);
}

void transfer_check(struct backend *backend)
{
    struct transfer *transfer = backend->transfer;
    pthread_mutex_lock(&transfer->mutex);
    cudaError_t failure = transfer->failure;
    pthread_mutex_unlock(&transfer->mutex);
    device_check(backend, failure, "a copy to the host");
}

void cuda_copy_out(struct backend *backend, void *to, const void *from, size_t bytes)
{
    struct ops_save save = {};
    save.to = to;
    save.head = static_cast<const char *>(from);
    save.head_bytes = bytes;
    cuda_save_wait(backend, cuda_save(backend, &save), NULL);
    transfer_check(backend);
}
