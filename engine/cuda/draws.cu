/* SPDX-License-Identifier: Apache-2.0 */
/* The draws of a step. A kernel writes an id and its log-probabilities per text to the host's
 * memory. The results also stay on the device until the next step's draws, since that step may
 * begin with these tokens.
 *
 * Where every row of a decode step draws, the samplers' requests come with the step's batch
 * (step.cu), and the draws are in its graph. Else the requests go to the device in a copy of their
 * own; if the lists of all texts exceed the room for them, some texts draw after the others. */
#include "engine/cuda/sampling.cuh"
#include "engine/cuda/step.h"

#include "engine/cuda/common.cuh"
#include "engine/cuda/switches.h"

/* The host's side of a step's draws. */
struct draws {
    sampling_text *asked;    /* [max_logits], and lists; pinned */
    sampling_drawn *results; /* [max_logits], mapped */
    sampling_drawn *mapped_results;
    struct draw **draws; /* [max_logits], count of them */
    int count;
    int32_t vocab_size;
};

/* Room for lists, where a text's own need not be as much. */
enum { LISTS_BYTES = 2 << 20 };

struct drawing {
    struct draws steps[2];            /* by the number of the step (step.h) */
    struct sampler_request *requests; /* [max_logits], between drawing_look and drawing_ask */
    sampling_text *device_asked;
    size_t lists_bytes; /* room for lists, there and in `asked`; one text's fit */
    sampling_drawn *device_results;
};

/* The most bytes of a text's lists, none of which is longer than the vocabulary (sampler.h). */
static size_t most_of_lists(int32_t vocab_size)
{
    return (size_t)vocab_size * (sizeof(logit_bias) + sizeof(seen_token) + 3 * sizeof(int32_t)) +
           (SAMPLER_MOST_WANTED + sampler_mask_words(vocab_size)) * sizeof(int32_t);
}

static int num_wanted(const struct draw *draw)
{
    return draw->wants_logprob && draw->wanted != NULL ? draw->num_top : 0;
}

/* Bytes of a draw's lists: a multiple of 8. */
static size_t bytes_of_lists(const struct draw *draw, const struct sampler_request &request)
{
    size_t ids = draw->num_banned + draw->num_ends + request.settings->num_allowed +
                 (size_t)num_wanted(draw) + request.mask_words;
    return request.settings->num_logit_bias * sizeof(logit_bias) +
           (size_t)request.num_seen * sizeof(seen_token) + (ids + ids % 2) * sizeof(int32_t);
}

int drawing_look(struct backend *backend, struct draw *const *draws, int count, size_t room)
{
    struct sampler_request *requests = backend->drawing->requests;
    size_t bytes = 0;
    for (int n = 0; n < count; n++) {
        requests[n] = sampler_request(draws[n]);
        bytes += bytes_of_lists(draws[n], requests[n]);
        if (bytes > room)
            return n;
    }
    return count;
}

/* A place in arrays of elements of this size, `at` bytes behind where they begin. */
static int32_t number_of(size_t at, size_t element)
{
    return (int32_t)(at / element);
}

static sampling_text settings_of(const struct draw *draw, const struct sampler_request &request,
                                 size_t lists)
{
    const struct sampling *s = request.settings;
    sampling_text t = {};
    t.settings = *s;
    t.num_top = draw->num_top;
    t.greedy = request.greedy;
    t.wants_sum = draw->wants_logprob;
    t.uniform = request.uniform;
    t.num_bias = (int32_t)s->num_logit_bias;
    t.num_seen = request.num_seen;
    t.num_banned = (int32_t)draw->num_banned;
    t.num_ends = (int32_t)draw->num_ends;
    t.num_allowed = (int32_t)s->num_allowed;
    t.num_wanted = num_wanted(draw);
    t.bias = number_of(lists, sizeof(logit_bias));
    t.seen = t.bias + t.num_bias; /* of the same size */
    t.banned =
        number_of(lists + (size_t)(t.num_bias + t.num_seen) * sizeof(seen_token), sizeof(int32_t));
    t.end = t.banned + t.num_banned;
    t.allowed = t.end + t.num_ends;
    t.wanted = t.allowed + t.num_allowed;
    t.mask = t.wanted + t.num_wanted;
    t.masked = request.mask_words > 0;
    return t;
}

size_t drawing_ask(const struct backend *backend, struct draw *const *draws, int count, int rows,
                   sampling_text *asked, size_t lists)
{
    static_assert(sizeof(logit_bias) == 8 && sizeof(seen_token) == 8, "lists follow each other");
    logit_bias *biases = (logit_bias *)(void *)asked;
    seen_token *seen = (seen_token *)(void *)asked;
    int32_t *ids = (int32_t *)(void *)asked;
    for (int i = 0; i < count; i++) {
        const struct draw *draw = draws[i];
        const struct sampler_request &request = backend->drawing->requests[i];
        const sampling_text t = settings_of(draw, request, lists);
        asked[i] = t;
        for (int32_t j = 0; j < t.num_bias; j++)
            biases[t.bias + j] = request.settings->logit_bias[j];
        for (int32_t j = 0; j < t.num_seen; j++)
            seen[t.seen + j] = {request.seen[j], request.counts[request.seen[j]]};
        for (int32_t j = 0; j < t.num_banned; j++)
            ids[t.banned + j] = draw->banned[j];
        for (int32_t j = 0; j < t.num_ends; j++)
            ids[t.end + j] = draw->ends[j];
        for (int32_t j = 0; j < t.num_allowed; j++)
            ids[t.allowed + j] = request.settings->allowed[j];
        for (int32_t j = 0; j < t.num_wanted; j++)
            ids[t.wanted + j] = draw->wanted[j];
        if (t.masked)
            memcpy(ids + t.mask, request.mask, request.mask_words * sizeof *request.mask);
        lists += bytes_of_lists(draw, request);
    }
    for (int i = count; i < rows; i++)
        asked[i].absent = true;
    return lists;
}

static void take(struct draw *draw, const sampling_drawn &drawn, int32_t vocab_size)
{
    draw->id = drawn.id;
    draw->nan_id = drawn.nan_id;
    if (drawn.id < 0)
        return;
    sampler_accept(draw->sampler, drawn.id);
    if (!draw->wants_logprob)
        return;
    draw->logprob = logprob_from(drawn.logit, drawn.max, drawn.sum);
    for (int i = 0; i < draw->num_top; i++) {
        bool there = draw->wanted != NULL || i < vocab_size;
        draw->top[i].id = there ? drawn.top[i].id : -1;
        draw->top[i].logprob =
            there ? logprob_from(drawn.top[i].logit, drawn.max, drawn.sum) : -INFINITY;
    }
}

/* Of scratch, to draw from rows of logits. */
static size_t sums_bytes(size_t count, int32_t vocab_size)
{
    return count * ((size_t)vocab_size / SAMPLING_BLOCK + 1) * sizeof(double);
}

static size_t scratch_bytes(size_t count, int32_t vocab_size)
{
    return sums_bytes(count, vocab_size) + 3 * count * (size_t)vocab_size * sizeof(float);
}

size_t drawing_scratch(const struct backend *backend)
{
    return scratch_bytes((size_t)backend->limits.max_logits, backend->limits.vocab_size);
}

int drawing_open(struct backend *backend, struct error *err)
{
    struct drawing *drawing = static_cast<struct drawing *>(calloc(1, sizeof *drawing));
    backend->drawing = drawing;
    if (drawing == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cuda: no memory");
    size_t count = (size_t)backend->limits.max_logits;
    size_t of_one = most_of_lists(backend->limits.vocab_size), of_all = count * of_one;
    of_all = of_all < LISTS_BYTES ? of_all : LISTS_BYTES;
    drawing->lists_bytes = of_one > of_all ? of_one : of_all;
    size_t bytes = count * sizeof(sampling_text) + drawing->lists_bytes;
    void *asked, *results, *mapped;
    drawing->requests =
        static_cast<struct sampler_request *>(calloc(count, sizeof *drawing->requests));
    if (drawing->requests == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cuda: no memory");
    if (device_allocate(backend, bytes, "what is asked of draws", &asked, err) != 0)
        return -1;
    drawing->device_asked = static_cast<sampling_text *>(asked);
    if (device_allocate(backend, count * sizeof(sampling_drawn), "what is drawn", &results, err) !=
        0)
        return -1;
    drawing->device_results = static_cast<sampling_drawn *>(results);
    for (struct draws &step : drawing->steps) {
        step.draws = static_cast<struct draw **>(calloc(count, sizeof *step.draws));
        if (step.draws == NULL)
            return error_set(err, ERROR_NO_MEMORY, "cuda: no memory");
        device_pin(backend, bytes, &asked);
        device_map(backend, count * sizeof(sampling_drawn), &results, &mapped);
        step.asked = static_cast<sampling_text *>(asked);
        step.results = static_cast<sampling_drawn *>(results);
        step.mapped_results = static_cast<sampling_drawn *>(mapped);
    }
    return device_status(backend, err);
}

void drawing_close(struct backend *backend)
{
    struct drawing *drawing = backend->drawing;
    if (drawing == NULL)
        return;
    for (struct draws &step : drawing->steps) {
        device_unpin(step.asked);
        device_unpin(step.results);
        free(step.draws);
    }
    free(drawing->requests);
    device_free(backend, drawing->device_asked);
    device_free(backend, drawing->device_results);
    free(drawing);
    backend->drawing = NULL;
}

const sampling_drawn *drawing_results(const struct backend *backend)
{
    return backend->drawing->device_results;
}

void drawing_take(struct backend *backend, int number)
{
    struct draws *step = &backend->drawing->steps[number];
    for (int i = 0; i < step->count && backend->failure == cudaSuccess; i++)
        if (!step->draws[i]->dropped)
            take(step->draws[i], step->results[i], step->vocab_size);
    step->count = 0;
}

/* Queues the draws of these requests, which are on the device. */
static void answer(struct backend *backend, const float *logits, int32_t vocab_size, int count,
                   const sampling_text *asked, sampling_drawn *drawn, sampling_drawn *told)
{
    size_t all = (size_t)count * (size_t)vocab_size;
    size_t sums = sums_bytes((size_t)count, vocab_size);
    char *memory = (char *)device_scratch(backend, scratch_bytes((size_t)count, vocab_size));
    float *after = (float *)(memory + sums);
    sampling_scratch scratch = {after, after + all, (int32_t *)after + 2 * all, (double *)memory};
    sampling_launch(backend, logits, vocab_size, count, asked, scratch, drawn, told);
}

/* Draws behind the step's graph, in which a copy of requests would keep kernels from overlapping.
 */
static void draw_apart(struct backend *backend, const float *logits, int32_t vocab_size,
                       struct draw *const *draws, int count, sampling_drawn *told)
{
    struct drawing *drawing = backend->drawing;
    sampling_text *asked = drawing->steps[backend->sending].asked;
    if (!backend->replaying) /* what is recorded must not hold the copy */
        graphs_finish(backend);
    for (int first = 0, n; first < count && backend->failure == cudaSuccess; first += n) {
        /* at least one, as there is room for any text's lists */
        n = drawing_look(backend, draws + first, count - first, drawing->lists_bytes);
        if (first > 0) /* what was asked before has been read */
            device_check(backend, cudaStreamSynchronize(backend->stream), "cudaStreamSynchronize");
        size_t bytes = drawing_ask(backend, draws + first, n, n, asked, (size_t)n * sizeof *asked);
        device_check(backend,
                     cudaMemcpyAsync(drawing->device_asked, asked, bytes, cudaMemcpyHostToDevice,
                                     backend->stream),
                     "cudaMemcpy");
        graphs_finish(backend); /* a replayed one: behind the copy, so that no draw waits for it */
        answer(backend, logits + (size_t)first * (size_t)vocab_size, vocab_size, n,
               drawing->device_asked, drawing->device_results + first,
               told == NULL ? NULL : told + first);
    }
}

extern "C" void cuda_draw(struct backend *backend, const float *logits, int32_t vocab_size,
                          struct draw *const *draws, int count)
{
    struct drawing *drawing = backend->drawing;
    struct draws *step = &drawing->steps[backend->sending];
    sampling_drawn *told = switch_on(backend, CUDA_SWITCH_MAPPED) ? step->mapped_results : NULL;
    const sampling_text *asked = backend->batch.asked;
    arrival_launch(backend);
    if (asked != NULL) { /* a launch like others, in the graph if there is one */
        answer(backend, logits, vocab_size, backend->batch.num_rows, asked, drawing->device_results,
               told);
        graphs_finish(backend);
    } else {
        draw_apart(backend, logits, vocab_size, draws, count, told);
    }
    if (backend->failure != cudaSuccess)
        return;
    if (told == NULL)
        device_check(backend,
                     cudaMemcpyAsync(step->results, drawing->device_results,
                                     (size_t)count * sizeof(sampling_drawn), cudaMemcpyDeviceToHost,
                                     backend->stream),
                     "cudaMemcpy");
    memcpy(step->draws, draws, (size_t)count * sizeof(struct draw *));
    step->count = count;
    step->vocab_size = vocab_size;
}
