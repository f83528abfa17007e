/* SPDX-License-Identifier: Apache-2.0 */
/* Begins, runs and ends a step. The first kernel of a decode step reads the batch from the host's
 * mapped memory, and leaves it where the others read it (arrival.cuh): a copy would be one more
 * thing to wait for. The batch of another step goes to the device in one copy. One copy brings back
 * logits.
 *
 * Two steps may be under way. Two host images alternate, so that one can be filled while the other
 * is read. The device has only one image: what writes it waits in the stream for the step before.
 */
#include "engine/cuda/step.h"

#include "engine/cuda/arrival.cuh"
#include "engine/cuda/switches.h"

extern "C" {
#include "engine/ops/walk.h"
}

/* Page tables of all texts of a step together: 16.8 million tokens, in 2 MiB. */
enum { MOST_PAGES = 1 << 18 };
/* The lists of a decode step's draws that come with its batch. If they are longer, the requests go
 * to the device by themselves (draws.cu). */
enum { EARLY_LISTS_BYTES = 64 << 10 };
/* Page tables of a decode step that are read before their length is known, at most. */
enum { SURE_PAGES_BYTES = 4 << 10 };
enum { PIECE = sizeof(int4), ALIGNED = 64 };
enum { MOST_PARTS_OF_BATCH = OPS_MOST_KEPT + 1 };

struct step_images {
    char *host[2], *mapped[2];     /* the same memory, for the host and for kernels */
    cudaEvent_t began[2], done[2]; /* of each step, without a copy of its batch: its time */
    char *device;
    float *logits;                                         /* pinned: [max_logits, vocab_size] */
    const float *sent[2];                                  /* what each step's receive gives */
    struct device_batch whole, parts[MOST_PARTS_OF_BATCH]; /* of the step that begins */
};

/* The places of a step's arrays in its image, behind an arrival_header. They are packed, so that a
 * small step is a small copy. A graph's arrays keep their places, since it has the same number of
 * rows. Behind them lie page tables, and then the lists of draws. */
struct layout {
    size_t tokens, spans;                          /* rows of which arrive one by one */
    size_t positions, row_span, logit_rows, asked; /* and what arrives as it is */
    size_t pages;
};

static size_t align(size_t bytes)
{
    return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

static size_t lay(size_t *total, size_t count, size_t size)
{
    size_t at = *total;
    *total = align(at + count * size);
    return at;
}

/* Of rows in as many spans at most; asks: of so many draws. */
static struct layout lay_out(size_t rows, size_t logits, size_t asks)
{
    struct layout layout;
    size_t total = align(sizeof(struct arrival_header));
    layout.tokens = lay(&total, rows, sizeof(struct device_token));
    layout.spans = lay(&total, rows, sizeof(struct device_span));
    layout.positions = lay(&total, rows, sizeof(int64_t));
    layout.row_span = lay(&total, rows, sizeof(int32_t));
    layout.logit_rows = lay(&total, logits, sizeof(int32_t));
    layout.asked = lay(&total, asks, sizeof(sampling_text));
    layout.pages = total;
    return layout;
}

/* What the parts of a batch take at most: their spans, one of nobody for each, and row_span. */
static size_t parts_most(const struct ops_limits *limits)
{
    const size_t rows = (size_t)limits->max_rows;
    if (limits->max_kept == 0)
        return 0;
    const size_t part = sizeof(struct device_span) + ALIGNED + align(rows * sizeof(int32_t));
    return rows * sizeof(struct device_span) + MOST_PARTS_OF_BATCH * part + ALIGNED;
}

static int open_images(struct backend *backend, struct step_images *images, struct error *err)
{
    const struct ops_limits *limits = &backend->limits;
    size_t logits = (size_t)limits->max_logits;
    size_t bytes = lay_out((size_t)limits->max_rows, logits, logits).pages +
                   (limits->pages ? MOST_PAGES * sizeof(char *) : 0) + EARLY_LISTS_BYTES +
                   parts_most(limits);
    void *memory, *mapped;
    if (device_allocate(backend, bytes, "a step's batch", &memory, err) != 0)
        return -1;
    images->device = static_cast<char *>(memory);
    for (int i = 0; i < 2; i++) {
        device_map(backend, bytes, &memory, &mapped);
        images->host[i] = static_cast<char *>(memory);
        images->mapped[i] = static_cast<char *>(mapped);
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
        for (cudaEvent_t *event : {&images->began[i], &images->done[i]})
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
        for (cudaEvent_t event : {images->began[i], images->done[i]})
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

/* Whether all spans have one row, and all rows want logits and nothing else: a step of a kind that
 * repeats. */
static bool only_decodes(const struct batch *batch)
{
    return batch->num_rows == batch->num_spans && batch_wants_all_rows(batch) &&
           !batch->wants_hidden;
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

/* A span has so many rows. */
static void count_rows(struct device_batch *batch, int rows)
{
    if (rows > batch->max_span_rows)
        batch->max_span_rows = rows;
    if (rows < FEW_TOKENS && rows > batch->max_few_rows)
        batch->max_few_rows = rows;
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

/* A part's spans and row_span, from byte `at` on; returns where they end. Rows that are not in the
 * part are those of a span of nobody, as padding is. */
static size_t fill_part(const struct image *image, const struct batch *batch,
                        const struct batch_part *part, size_t at, struct device_batch *out)
{
    const struct device_span *all = on_host<struct device_span>(image, image->layout->spans);
    const int32_t *row_span = on_host<int32_t>(image, image->layout->row_span);
    const size_t rows_at = align(at + (size_t)(part->num_spans + 1) * sizeof(struct device_span));
    struct device_span *spans = on_host<struct device_span>(image, at);
    int32_t *rows = on_host<int32_t>(image, rows_at);
    for (int r = 0; r < batch->num_rows; r++)
        rows[r] = part->num_spans;
    spans[part->num_spans] = {0, 1, 0, NULL, NULL};
    out->spans = on_device<const struct device_span>(image, at);
    out->row_span = on_device<const int32_t>(image, rows_at);
    out->num_spans = part->num_spans;
    out->max_span_rows = 1;
    out->max_few_rows = 0;
    for (int i = 0; i < part->num_spans; i++) {
        const struct batch_span *span = &part->spans[i];
        spans[i] = all[row_span[span->first_row]];
        spans[i].first_row = span->first_row;
        spans[i].num_rows = span->num_rows;
        spans[i].position = span->position;
        for (int j = 0; j < span->num_rows; j++)
            rows[span->first_row + j] = i;
        count_rows(out, span->num_rows);
    }
    return align(rows_at + (size_t)batch->num_rows * sizeof(int32_t));
}

/* Behind all else of the image, which has `bytes`; returns its bytes. */
static size_t fill_parts(struct step_images *images, const struct image *image,
                         const struct batch *batch, const struct device_batch *whole, size_t bytes)
{
    images->whole = *whole;
    if (batch->num_parts == 0)
        return bytes;
    assert(batch->num_parts <= MOST_PARTS_OF_BATCH);
    bytes = align(bytes);
    for (int i = 0; i < batch->num_parts; i++) {
        images->parts[i] = *whole;
        bytes = fill_part(image, batch, &batch->parts[i], bytes, &images->parts[i]);
    }
    return bytes;
}

static void cuda_part(struct backend *backend, int part)
{
    const struct step_images *images = backend->images;
    backend->batch = part < 0 ? images->whole : images->parts[part];
}

/* Rows from the batch's to `rows`: texts that are not there. */
static void fill_padding(const struct image *image, const struct batch *batch, int rows)
{
    const struct layout *layout = image->layout;
    for (int r = batch->num_rows; r < rows; r++) {
        on_host<struct device_token>(image, layout->tokens)[r] = {0, -1};
        on_host<int64_t>(image, layout->positions)[r] = 0;
        on_host<int32_t>(image, layout->row_span)[r] = r;
        on_host<int32_t>(image, layout->logit_rows)[r] = r;
        on_host<struct device_span>(image, layout->spans)[r] = {r, 1, 0, NULL, NULL};
    }
}

/* Returns the bytes of the image. */
static size_t fill_image(const struct image *image, const struct batch *batch)
{
    const struct layout *layout = image->layout;
    struct device_token *tokens = on_host<struct device_token>(image, layout->tokens);
    int32_t *row_span = on_host<int32_t>(image, layout->row_span);
    for (int r = 0; r < batch->num_rows; r++)
        tokens[r] = {batch->tokens[r], batch->token_draws != NULL ? batch->token_draws[r] : -1};
    memcpy(image->host + layout->positions, batch->positions,
           (size_t)batch->num_rows * sizeof(int64_t));
    if (batch->num_logits > 0)
        memcpy(image->host + layout->logit_rows, batch->logit_rows,
               (size_t)batch->num_logits * sizeof(int32_t));
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
        .tokens = on_device<const struct device_token>(image, layout->tokens),
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
        count_rows(&out, span->num_rows);
        while (out.max_end < span->position + span->num_rows && out.max_end < reach)
            out.max_end *= 2;
    }
    return out;
}

/* Whether the draws of a decode step come with its batch. */
static bool asks_early(struct backend *backend, const struct batch *batch)
{
    return batch->num_draws == batch->num_rows && switch_on(backend, CUDA_SWITCH_DRAW) &&
           drawing_look(backend, batch->draws, batch->num_draws, EARLY_LISTS_BYTES) ==
               batch->num_draws;
}

/* The batch's page tables may be as long as this. */
static size_t longest_pages(const struct backend *backend)
{
    int64_t pages = backend->batch.num_rows * (backend->batch.max_end / OPS_TILE);
    return backend->limits.pages ? (size_t)pages * sizeof(char *) : 0;
}

/* What the step's first kernel has to do. */
static struct device_arrival arrival_of(const struct backend *backend, const struct image *image,
                                        const char *from, bool feeds)
{
    const struct layout *layout = image->layout;
    size_t pages = longest_pages(backend);
    pages = pages < SURE_PAGES_BYTES ? pages : (size_t)SURE_PAGES_BYTES;
    struct device_arrival arrival = {};
    if (from == NULL && !feeds)
        return arrival;
    arrival.from = from;
    arrival.to = image->device;
    arrival.tokens = on_device<struct device_token>(image, layout->tokens);
    arrival.spans = on_device<struct device_span>(image, layout->spans);
    arrival.first = (uint32_t)(layout->positions / PIECE);
    arrival.sure = (uint32_t)((layout->pages - layout->positions + pages + PIECE - 1) / PIECE);
    arrival.drawn = feeds ? drawing_results(backend) : NULL;
    return arrival;
}

/* Writes a step's batch, padded to so many rows (0: not padded), into the host's image and
 * describes it. Returns its bytes. */
static size_t write_batch(struct backend *backend, const struct image *image,
                          const struct batch *batch, int padded, bool asks)
{
    const struct layout *layout = image->layout;
    size_t bytes = fill_image(image, batch);
    fill_padding(image, batch, padded);
    backend->batch = describe(image, batch, padded > 0 ? padded : batch->num_rows,
                              padded > 0 ? padded : batch->num_spans,
                              padded > 0 ? padded : batch->num_logits, reach_of(&backend->limits));
    if (asks) {
        bytes = layout->asked + drawing_ask(backend, batch->draws, batch->num_draws, padded,
                                            on_host<sampling_text>(image, layout->asked),
                                            align(bytes) - layout->asked);
        backend->batch.asked = on_device<const sampling_text>(image, layout->asked);
    }
    bytes = fill_parts(backend->images, image, batch, &backend->batch, bytes);
    on_host<struct arrival_header>(image, 0)->pieces =
        (uint32_t)((bytes - layout->positions + PIECE - 1) / PIECE);
    return bytes;
}

static void cuda_begin(struct backend *backend, const struct batch *batch)
{
    struct step_images *images = backend->images;
    device_use(backend);
    backend->batch = {};
    backend->arrival = {};
    backend->batch_rows = batch->num_rows;
    if (backend->failure != cudaSuccess)
        return;
    int i = backend->sending;
    int padded = only_decodes(batch) ? graphs_bucket(backend, batch->num_rows) : 0;
    bool mapped = padded > 0 && switch_on(backend, CUDA_SWITCH_MAPPED);
    bool asks = padded > 0 && asks_early(backend, batch);
    bool feeds = batch->token_draws != NULL || (padded > 0 && switch_on(backend, CUDA_SWITCH_FEED));
    const struct layout layout =
        lay_out((size_t)(padded > 0 ? padded : batch->num_rows),
                (size_t)(padded > 0 ? padded : batch->num_logits), (size_t)(asks ? padded : 0));
    const struct image image = {&layout, images->host[i], images->device};
    /* whoever read this image belonged to a step that has been received */
    device_check(backend, cudaEventSynchronize(images->done[i]), "cudaEventSynchronize");
    size_t bytes = write_batch(backend, &image, batch, padded, asks);
    if (!mapped)
        device_check(backend,
                     cudaMemcpyAsync(images->device, images->host[i], bytes, cudaMemcpyHostToDevice,
                                     backend->stream),
                     "cudaMemcpy");
    device_check(backend, cudaEventRecord(images->began[i], backend->stream), "cudaEventRecord");
    backend->arrival =
        arrival_of(backend, &image, mapped ? images->mapped[i] : (const char *)NULL, feeds);
    if (!switch_on(backend, CUDA_SWITCH_FEED))
        arrival_launch(backend);
    const struct graph_key key = {padded, asks, backend->batch.max_end, mapped ? i : 0};
    graphs_begin(backend, &key);
    if (backend->replaying) /* the graph does it */
        backend->arrival = {};
}

/* A graph, or the launches one by one. */
static void cuda_run(struct backend *backend, const struct operation *operations,
                     int num_operations, const struct batch *batch)
{
    const struct walk walk = {backend, operations_perform, cuda_part, device_copy};
    if (backend->replaying)
        return;
    /* The first look-up would bring the tokens to itself alone, where another follows. */
    const bool again = num_operations > 1 && operations[1].kind == OPERATION_EMBED;
    if (again && backend->failure == cudaSuccess)
        arrival_launch(backend);
    walk_operations(&walk, operations, num_operations, batch);
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
                     cudaEventElapsedTime(&milliseconds, images->began[i], images->done[i]),
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
    ops->run = cuda_run;
    ops->draw = cuda_draw;
    ops->send = cuda_send;
    ops->receive = cuda_receive;
    ops->busy_seconds = cuda_busy_seconds;
    ops->overlaps = true;
    ops->max_pages = MOST_PAGES;
    operations_set(ops);
}
