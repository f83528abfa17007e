/* The beginning and the end of a step: the batch goes to the device in one copy, its logits come
 * back in one, and what was drawn from others with them.
 *
 * Two steps may be under way: two host images alternate, so that one can be filled while the other
 * is on its way. The image on the device is one: the copy waits in the stream for the step before.
 */
#include "engine/cuda/step.h"

#include "engine/cuda/common.cuh"

struct step_images {
    char *host[2]; /* pinned */
    cudaEvent_t copied[2], done[2];
    char *device;
    size_t bytes;           /* of each */
    size_t fixed_bytes;     /* of all but the page tables, which lie behind */
    struct device_batch at; /* the arrays on the device */
    size_t tokens, positions, spans, row_span, logit_rows, token_draws; /* where they lie */
    float *logits;                                                      /* pinned */
    size_t logits_count;                                                /* room */
    const float *sent[2]; /* what each step's receive gives */
};

static size_t lay(size_t *total, size_t count, size_t size)
{
    size_t at = *total;
    *total += (count * size + 63) / 64 * 64;
    return at;
}

/* Images with room for `page_bytes` of page tables; what was in the old ones is lost. */
static int open_images(struct backend *backend, size_t page_bytes, struct error *err)
{
    struct step_images *images = backend->images;
    images->bytes = images->fixed_bytes + page_bytes;
    void *device;
    if (device_allocate(backend, images->bytes, "a step's batch", &device, err) != 0)
        return -1;
    images->device = static_cast<char *>(device);
    for (int i = 0; i < 2; i++) {
        void *host;
        if (!device_pin(backend, images->bytes, &host))
            return device_status(backend, err);
        images->host[i] = static_cast<char *>(host);
    }
    char *base = images->device;
    images->at.tokens = reinterpret_cast<int32_t *>(base + images->tokens);
    images->at.positions = reinterpret_cast<int64_t *>(base + images->positions);
    images->at.spans = reinterpret_cast<struct device_span *>(base + images->spans);
    images->at.row_span = reinterpret_cast<int32_t *>(base + images->row_span);
    images->at.logit_rows = reinterpret_cast<int32_t *>(base + images->logit_rows);
    return 0;
}

static void close_images(struct backend *backend)
{
    struct step_images *images = backend->images;
    device_free(backend, images->device);
    images->device = NULL;
    for (int i = 0; i < 2; i++) {
        cudaFreeHost(images->host[i]);
        images->host[i] = NULL;
    }
}

int step_open(struct backend *backend, struct error *err)
{
    struct step_images *images = static_cast<struct step_images *>(calloc(1, sizeof *images));
    backend->images = images;
    if (images == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cuda: no memory");
    size_t rows = (size_t)backend->limits.max_rows, total = 0;
    size_t logits = (size_t)backend->limits.max_logits;
    images->tokens = lay(&total, rows, sizeof(int32_t));
    images->positions = lay(&total, rows, sizeof(int64_t));
    images->spans = lay(&total, rows, sizeof(struct device_span));
    images->row_span = lay(&total, rows, sizeof(int32_t));
    images->logit_rows = lay(&total, logits, sizeof(int32_t));
    images->token_draws = lay(&total, rows, sizeof(int32_t));
    images->fixed_bytes = total;
    for (int i = 0; i < 2; i++)
        for (cudaEvent_t *event : {&images->copied[i], &images->done[i]})
            if (!device_check(backend, cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                              "cudaEventCreate"))
                return device_status(backend, err);
    if (open_images(backend, rows * sizeof(char *), err) != 0)
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
    close_images(backend);
    for (int i = 0; i < 2; i++)
        for (cudaEvent_t event : {images->copied[i], images->done[i]})
            if (event != NULL)
                cudaEventDestroy(event);
    cudaFreeHost(images->logits);
    free(images);
}

/* ---- begin ---- */

/* Pages that hold what a span's text has up to its end. */
static size_t span_pages(const struct batch_span *span)
{
    int64_t needed = (span->position + span->num_rows + OPS_TILE - 1) / OPS_TILE;
    return (size_t)(span->num_pages < needed ? span->num_pages : needed);
}

/* Fewer images than pages: larger ones. */
static bool grow_images(struct backend *backend, const struct batch *batch)
{
    struct step_images *images = backend->images;
    size_t pages = 0;
    for (int i = 0; i < batch->num_spans; i++)
        pages += span_pages(&batch->spans[i]);
    if (images->fixed_bytes + pages * sizeof(char *) <= images->bytes)
        return true;
    struct error err = ERROR_INIT;
    device_check(backend, cudaStreamSynchronize(backend->stream), "cudaStreamSynchronize");
    close_images(backend);
    step_forget_graphs(backend);
    if (open_images(backend, 2 * pages * sizeof(char *), &err) == 0)
        return true;
    device_check(backend, cudaErrorMemoryAllocation, "a step's page tables");
    return false;
}

/* Spans of one row each whose rows all want logits: a step that comes again and again. */
static bool only_decodes(const struct batch *batch)
{
    return batch->num_rows == batch->num_spans && batch_wants_all_rows(batch);
}

/* Page tables behind the fixed part; returns the bytes of all. */
static size_t fill_spans(const struct step_images *images, const struct batch *batch, char *host)
{
    struct device_span *spans = reinterpret_cast<struct device_span *>(host + images->spans);
    size_t at = images->fixed_bytes;
    for (int i = 0; i < batch->num_spans; i++) {
        const struct batch_span *span = &batch->spans[i];
        size_t bytes = span_pages(span) * sizeof(char *);
        if (bytes > 0)
            memcpy(host + at, span->pages, bytes);
        /* a model without recurrent memory has no slot: any address that is not NULL */
        spans[i] = {span->first_row, span->num_rows, span->position,
                    span->slot != NULL ? span->slot : images->device,
                    reinterpret_cast<char *const *>(images->device + at)};
        at += bytes;
    }
    return at;
}

/* Rows from the batch's to `rows`: texts that are not there. */
static void fill_padding(const struct step_images *images, const struct batch *batch, char *host,
                         int rows)
{
    struct device_span *spans = reinterpret_cast<struct device_span *>(host + images->spans);
    for (int r = batch->num_rows; r < rows; r++) {
        reinterpret_cast<int32_t *>(host + images->tokens)[r] = 0;
        reinterpret_cast<int64_t *>(host + images->positions)[r] = 0;
        reinterpret_cast<int32_t *>(host + images->row_span)[r] = r;
        reinterpret_cast<int32_t *>(host + images->logit_rows)[r] = r;
        spans[r] = {r, 1, 0, NULL, NULL};
    }
}

static size_t fill_image(const struct step_images *images, const struct batch *batch, char *host)
{
    int32_t *row_span = reinterpret_cast<int32_t *>(host + images->row_span);
    memcpy(host + images->tokens, batch->tokens, (size_t)batch->num_rows * sizeof(int32_t));
    memcpy(host + images->positions, batch->positions, (size_t)batch->num_rows * sizeof(int64_t));
    if (batch->num_logits > 0)
        memcpy(host + images->logit_rows, batch->logit_rows,
               (size_t)batch->num_logits * sizeof(int32_t));
    if (batch->token_draws != NULL)
        memcpy(host + images->token_draws, batch->token_draws,
               (size_t)batch->num_rows * sizeof(int32_t));
    for (int i = 0; i < batch->num_spans; i++)
        for (int j = 0; j < batch->spans[i].num_rows; j++)
            row_span[batch->spans[i].first_row + j] = i;
    return fill_spans(images, batch, host);
}

/* The batch as kernels see it, `rows` being those it is padded to, or 0. */
static struct device_batch describe(const struct step_images *images, const struct batch *batch,
                                    int rows)
{
    struct device_batch out = images->at;
    out.num_rows = rows > 0 ? rows : batch->num_rows;
    out.num_spans = rows > 0 ? rows : batch->num_spans;
    out.num_logits = rows > 0 ? rows : batch->num_logits;
    out.max_span_rows = 1;
    out.max_end = OPS_TILE;
    for (int i = 0; i < batch->num_spans; i++) {
        const struct batch_span *span = &batch->spans[i];
        if (span->num_rows > out.max_span_rows)
            out.max_span_rows = span->num_rows;
        while (out.max_end < span->position + span->num_rows)
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
    if (backend->failure != cudaSuccess || !grow_images(backend, batch))
        return;
    int rows = only_decodes(batch) ? graphs_bucket(backend, batch->num_rows) : 0;
    int i = backend->sending;
    device_check(backend, cudaEventSynchronize(images->copied[i]), "cudaEventSynchronize");
    size_t bytes = fill_image(images, batch, images->host[i]);
    fill_padding(images, batch, images->host[i], rows);
    backend->batch = describe(images, batch, rows);
    device_check(backend,
                 cudaMemcpyAsync(images->device, images->host[i], bytes, cudaMemcpyHostToDevice,
                                 backend->stream),
                 "cudaMemcpy");
    device_check(backend, cudaEventRecord(images->copied[i], backend->stream), "cudaEventRecord");
    if (batch->token_draws != NULL)
        drawing_feed(backend,
                     reinterpret_cast<const int32_t *>(images->device + images->token_draws),
                     images->at.row_span, batch->num_rows,
                     reinterpret_cast<int32_t *>(images->device + images->tokens),
                     reinterpret_cast<struct device_span *>(images->device + images->spans));
    struct graph_key key = {rows, backend->batch.max_end};
    graphs_begin(backend, &key);
}

/* ---- the end ---- */

/* Pinned memory for `count` logits. */
static float *logits_room(struct backend *backend, size_t count)
{
    struct step_images *images = backend->images;
    if (count > images->logits_count) {
        void *memory;
        cudaFreeHost(images->logits);
        images->logits = NULL;
        images->logits_count = 0;
        if (!device_pin(backend, count * sizeof(float), &memory))
            return NULL;
        images->logits = static_cast<float *>(memory);
        images->logits_count = count;
    }
    return images->logits;
}

static void cuda_send(struct backend *backend, const float *device_data, size_t count)
{
    struct step_images *images = backend->images;
    int i = backend->sending;
    backend->sending = 1 - i;
    images->sent[i] = NULL;
    graphs_finish(backend);
    if (backend->failure != cudaSuccess)
        return;
    float *logits = logits_room(backend, count);
    if (logits != NULL && count > 0)
        device_check(backend,
                     cudaMemcpyAsync(logits, device_data, count * sizeof(float),
                                     cudaMemcpyDeviceToHost, backend->stream),
                     "cudaMemcpy");
    device_check(backend, cudaEventRecord(images->done[i], backend->stream), "cudaEventRecord");
    images->sent[i] = logits;
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
    operations_count(backend);
    drawing_take(backend, i);
    return backend->failure == cudaSuccess ? images->sent[i] : NULL;
}

void step_operations(struct ops *ops)
{
    ops->begin = cuda_begin;
    ops->draw = cuda_draw;
    ops->send = cuda_send;
    ops->receive = cuda_receive;
    ops->overlaps = true;
    operations_set(ops);
}
