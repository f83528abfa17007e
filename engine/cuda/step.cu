/* SPDX-License-Identifier: Apache-2.0 */
/* Begins and ends a step. The batch goes to the device in one copy. One copy brings back its
 * logits, together with the tokens that were drawn.
 *
 * Two steps may be under way. Two host images alternate, so that one can be filled while the other
 * is copied. The device has only one image: the copy waits in the stream for the step before. */
#include "engine/cuda/step.h"

#include "engine/cuda/common.cuh"

/* Page tables of all texts of a step together: 16.8 million tokens, in 2 MiB. */
enum { MOST_PAGES = 1 << 18 };

struct step_images {
    char *host[2];                  /* pinned */
    cudaEvent_t copied[2], done[2]; /* each step's image, and all of it: its time on the device */
    char *device;
    float *logits;        /* pinned: [max_logits, vocab_size] */
    const float *sent[2]; /* what each step's receive gives */
};

/* The places of a step's arrays in its image. They are packed, so that a small step is a small
 * copy. A graph's arrays keep their places, since it has the same number of rows. */
struct layout {
    size_t tokens, positions, spans, row_span, logit_rows, token_draws;
    size_t pages; /* what lies behind the others */
};

static size_t lay(size_t *total, size_t count, size_t size)
{
    size_t at = *total;
    *total += (count * size + 63) / 64 * 64;
    return at;
}

/* Of rows in as many spans at most. */
static struct layout lay_out(size_t rows, size_t logits)
{
    struct layout layout;
    size_t total = 0;
    layout.tokens = lay(&total, rows, sizeof(int32_t));
    layout.positions = lay(&total, rows, sizeof(int64_t));
    layout.spans = lay(&total, rows, sizeof(struct device_span));
    layout.row_span = lay(&total, rows, sizeof(int32_t));
    layout.logit_rows = lay(&total, logits, sizeof(int32_t));
    layout.token_draws = lay(&total, rows, sizeof(int32_t));
    layout.pages = total;
    return layout;
}

static int open_images(struct backend *backend, struct step_images *images, struct error *err)
{
    const struct ops_limits *limits = &backend->limits;
    size_t logits = (size_t)limits->max_logits;
    size_t bytes = lay_out((size_t)limits->max_rows, logits).pages +
                   (limits->max_keys == INT64_MAX ? MOST_PAGES * sizeof(char *) : 0);
    void *memory;
    if (device_allocate(backend, bytes, "a step's batch", &memory, err) != 0)
        return -1;
    images->device = static_cast<char *>(memory);
    for (char *&host : images->host) {
        if (!device_pin(backend, bytes, &memory))
            return device_status(backend, err);
        host = static_cast<char *>(memory);
    }
    if (!device_pin(backend, logits * (size_t)limits->vocab_size * sizeof(float), &memory))
        return device_status(backend, err);
    images->logits = static_cast<float *>(memory);
    return 0;
}

int step_open(struct backend *backend, struct error *err)
{
    struct step_images *images = static_cast<struct step_images *>(calloc(1, sizeof *images));
    backend->images = images;
    if (images == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cuda: no memory");
    for (int i = 0; i < 2; i++)
        for (cudaEvent_t *event : {&images->copied[i], &images->done[i]})
            if (!device_check(backend, cudaEventCreateWithFlags(event, cudaEventDefault),
                              "cudaEventCreate"))
                return device_status(backend, err);
    if (open_images(backend, images, err) != 0)
        return -1;
    return drawing_open(backend, err);
}

void step_close(struct backend *backend)
{
    graphs_close(backend);
    operations_close(backend);
    drawing_close(backend);
    struct step_images *images = backend->images;
    if (images == NULL)
        return;
    device_free(backend, images->device);
    device_unpin(images->logits);
    for (int i = 0; i < 2; i++) {
        device_unpin(images->host[i]);
        for (cudaEvent_t event : {images->copied[i], images->done[i]})
            if (event != NULL)
                cudaEventDestroy(event);
    }
    free(images);
}

/* ---- begin ---- */

/* Pages that hold what a span's text has up to its end. */
static size_t span_pages(const struct batch_span *span)
{
    int64_t needed = (span->position + span->num_rows + OPS_TILE - 1) / OPS_TILE;
    return (size_t)(span->num_pages < needed ? span->num_pages : needed);
}

/* Whether all spans have one row and all rows want logits: a step of a kind that repeats. */
static bool only_decodes(const struct batch *batch)
{
    return batch->num_rows == batch->num_spans && batch_wants_all_rows(batch);
}

/* A batch on its way: its arrays in a host image, and where they will be on the device. */
struct image {
    const struct layout *layout;
    char *host, *device;
};

template <typename T> static T *on_host(const struct image *image, size_t at)
{
    return reinterpret_cast<T *>(image->host + at);
}

template <typename T> static T *on_device(const struct image *image, size_t at)
{
    return reinterpret_cast<T *>(image->device + at);
}

/* Page tables behind the other arrays; returns the bytes of all. */
static size_t fill_spans(const struct image *image, const struct batch *batch)
{
    struct device_span *spans = on_host<struct device_span>(image, image->layout->spans);
    size_t at = image->layout->pages;
    for (int i = 0; i < batch->num_spans; i++) {
        const struct batch_span *span = &batch->spans[i];
        size_t bytes = span_pages(span) * sizeof(char *);
        if (bytes > 0)
            memcpy(image->host + at, span->pages, bytes);
        /* a model without recurrent memory has no slot: any address that is not NULL */
        spans[i] = {span->first_row, span->num_rows, span->position,
                    span->slot != NULL ? span->slot : image->device,
                    on_device<char *const>(image, at)};
        at += bytes;
    }
    return at;
}

/* Rows from the batch's to `rows`: texts that are not there. */
static void fill_padding(const struct image *image, const struct batch *batch, int rows)
{
    const struct layout *layout = image->layout;
    for (int r = batch->num_rows; r < rows; r++) {
        on_host<int32_t>(image, layout->tokens)[r] = 0;
        on_host<int64_t>(image, layout->positions)[r] = 0;
        on_host<int32_t>(image, layout->row_span)[r] = r;
        on_host<int32_t>(image, layout->logit_rows)[r] = r;
        on_host<struct device_span>(image, layout->spans)[r] = {r, 1, 0, NULL, NULL};
    }
}

static size_t fill_image(const struct image *image, const struct batch *batch)
{
    const struct layout *layout = image->layout;
    int32_t *row_span = on_host<int32_t>(image, layout->row_span);
    memcpy(image->host + layout->tokens, batch->tokens, (size_t)batch->num_rows * sizeof(int32_t));
    memcpy(image->host + layout->positions, batch->positions,
           (size_t)batch->num_rows * sizeof(int64_t));
    if (batch->num_logits > 0)
        memcpy(image->host + layout->logit_rows, batch->logit_rows,
               (size_t)batch->num_logits * sizeof(int32_t));
    if (batch->token_draws != NULL)
        memcpy(image->host + layout->token_draws, batch->token_draws,
               (size_t)batch->num_rows * sizeof(int32_t));
    for (int i = 0; i < batch->num_spans; i++)
        for (int j = 0; j < batch->spans[i].num_rows; j++)
            row_span[batch->spans[i].first_row + j] = i;
    return fill_spans(image, batch);
}

/* How far the ends of texts matter. Beyond it a window has no more splits (attention.cu,
 * most_splits); if all mixers are linear, nothing depends on it. */
static int64_t reach_of(const struct ops_limits *limits)
{
    bool windows = limits->max_keys > 0 && limits->max_keys < INT64_MAX;
    return limits->max_keys + (windows ? 2 * OPS_TILE : 0);
}

/* The batch as kernels see it, padded to so many rows, spans and logits. */
static struct device_batch describe(const struct image *image, const struct batch *batch,
                                    int num_rows, int num_spans, int num_logits, int64_t reach)
{
    const struct layout *layout = image->layout;
    struct device_batch out = {
        .tokens = on_device<const int32_t>(image, layout->tokens),
        .positions = on_device<const int64_t>(image, layout->positions),
        .spans = on_device<const struct device_span>(image, layout->spans),
        .row_span = on_device<const int32_t>(image, layout->row_span),
        .logit_rows = on_device<const int32_t>(image, layout->logit_rows),
        .num_rows = num_rows,
        .num_spans = num_spans,
        .num_logits = num_logits,
        .max_span_rows = 1,
        .max_end = OPS_TILE,
    };
    for (int i = 0; i < batch->num_spans; i++) {
        const struct batch_span *span = &batch->spans[i];
        if (span->num_rows > out.max_span_rows)
            out.max_span_rows = span->num_rows;
        if (span->num_rows < FEW_TOKENS && span->num_rows > out.max_few_rows)
            out.max_few_rows = span->num_rows;
        while (out.max_end < span->position + span->num_rows && out.max_end < reach)
            out.max_end *= 2;
    }
    return out;
}

static void cuda_begin(struct backend *backend, const struct batch *batch)
{
    struct step_images *images = backend->images;
    device_use(backend);
    backend->batch = {};
    backend->batch_rows = batch->num_rows;
    if (backend->failure != cudaSuccess)
        return;
    int padded = only_decodes(batch) ? graphs_bucket(backend, batch->num_rows) : 0;
    int rows = padded > 0 ? padded : batch->num_rows;
    int logits = padded > 0 ? padded : batch->num_logits;
    int i = backend->sending;
    const struct layout layout = lay_out((size_t)rows, (size_t)logits);
    const struct image image = {&layout, images->host[i], images->device};
    device_check(backend, cudaEventSynchronize(images->copied[i]), "cudaEventSynchronize");
    size_t bytes = fill_image(&image, batch);
    fill_padding(&image, batch, padded);
    backend->batch = describe(&image, batch, rows, padded > 0 ? padded : batch->num_spans, logits,
                              reach_of(&backend->limits));
    device_check(backend,
                 cudaMemcpyAsync(images->device, images->host[i], bytes, cudaMemcpyHostToDevice,
                                 backend->stream),
                 "cudaMemcpy");
    device_check(backend, cudaEventRecord(images->copied[i], backend->stream), "cudaEventRecord");
    if (batch->token_draws != NULL)
        drawing_feed(backend, on_device<const int32_t>(&image, layout.token_draws),
                     backend->batch.row_span, batch->num_rows,
                     on_device<int32_t>(&image, layout.tokens),
                     on_device<struct device_span>(&image, layout.spans));
    struct graph_key key = {padded, backend->batch.max_end};
    graphs_begin(backend, &key);
}

/* ---- the end ---- */

static void cuda_send(struct backend *backend, const float *device_data, size_t count)
{
    struct step_images *images = backend->images;
    int i = backend->sending;
    backend->sending = 1 - i;
    images->sent[i] = NULL;
    graphs_finish(backend);
    if (backend->failure != cudaSuccess)
        return;
    if (count > 0)
        device_check(backend,
                     cudaMemcpyAsync(images->logits, device_data, count * sizeof(float),
                                     cudaMemcpyDeviceToHost, backend->stream),
                     "cudaMemcpy");
    device_check(backend, cudaEventRecord(images->done[i], backend->stream), "cudaEventRecord");
    images->sent[i] = images->logits;
}

static const float *cuda_receive(struct backend *backend)
{
    struct step_images *images = backend->images;
    int i = backend->waiting;
    backend->waiting = 1 - i;
    device_use(backend);
    if (backend->failure != cudaSuccess)
        return NULL;
    /* times are counted of all that was queued */
    device_check(backend,
                 backend->profiler != NULL ? cudaStreamSynchronize(backend->stream)
                                           : cudaEventSynchronize(images->done[i]),
                 "a step");
    float milliseconds = 0;
    if (device_check(backend,
                     cudaEventElapsedTime(&milliseconds, images->copied[i], images->done[i]),
                     "cudaEventElapsedTime"))
        backend->busy += 1e-3 * (double)milliseconds;
    operations_count(backend);
    drawing_take(backend, i);
    return backend->failure == cudaSuccess ? images->sent[i] : NULL;
}

static double cuda_busy_seconds(const struct backend *backend)
{
    return backend->busy;
}

void step_operations(struct ops *ops)
{
    ops->begin = cuda_begin;
    ops->draw = cuda_draw;
    ops->send = cuda_send;
    ops->receive = cuda_receive;
    ops->busy_seconds = cuda_busy_seconds;
    ops->overlaps = true;
    ops->max_pages = MOST_PAGES;
    operations_set(ops);
}
