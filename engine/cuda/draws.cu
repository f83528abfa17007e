/* SPDX-License-Identifier: Apache-2.0 */
/* The draws of a step. The samplers' requests go to the device in one copy. One copy brings back an
 * id and its log-probabilities per text, together with the step's logits. The results also stay on
 * the device until the next step's draws, since that step may begin with these tokens.
 *
 * If the lists of all texts exceed the room for them, some texts draw after the others. */
#include "engine/cuda/sampling.cuh"
#include "engine/cuda/step.h"

#include "engine/cuda/common.cuh"

/* The host's side of a step's draws. */
struct draws {
    void *asked;             /* pinned */
    sampling_drawn *results; /* [max_logits], pinned */
    struct draw **draws;     /* [max_logits], count of them */
    int count;
    int32_t vocab_size;
};

/* Room for lists, where a text's own need not be as much. */
enum { LISTS_BYTES = 1 << 20 };

struct drawing {
    struct draws steps[2]; /* by the number of the step (step.h) */
    void *device_asked;
    size_t lists_bytes; /* room for lists, there and in `asked`; one text's fit */
    sampling_drawn *device_results;
};

/* Where the lists of all texts begin, after the requests of all texts. */
struct layout {
    size_t biases, seen, ids, bytes;
};

/* The most bytes of a text's lists, none of which is longer than the vocabulary (sampler.h). */
static size_t most_of_lists(int32_t vocab_size)
{
    return (size_t)vocab_size * (sizeof(logit_bias) + sizeof(seen_token) + 2 * sizeof(int32_t));
}

/* Takes as many of the first *count draws as have room for their lists; that becomes *count. */
static layout lay_out(struct draw *const *draws, int *count, size_t room)
{
    size_t biases = 0, seen = 0, ids = 0;
    int i = 0;
    for (; i < *count; i++) {
        struct sampler_request request = sampler_request(draws[i]);
        size_t biases_too = biases + request.settings->num_logit_bias * sizeof(logit_bias);
        size_t seen_too = seen + (size_t)request.num_seen * sizeof(seen_token);
        size_t ids_too = ids + (draws[i]->num_banned + draws[i]->num_ends) * sizeof(int32_t);
        if (i > 0 && biases_too + seen_too + ids_too > room)
            break;
        biases = biases_too;
        seen = seen_too;
        ids = ids_too;
    }
    *count = i;
    layout out;
    out.biases = (size_t)i * sizeof(sampling_text);
    out.seen = out.biases + biases;
    out.ids = out.seen + seen;
    out.bytes = out.ids + ids;
    return out;
}

static void fill(struct draw *const *draws, int count, const layout &at, char *memory)
{
    logit_bias *biases = (logit_bias *)(memory + at.biases);
    seen_token *seen = (seen_token *)(memory + at.seen);
    int32_t *ids = (int32_t *)(memory + at.ids);
    int32_t num_biases = 0, num_seen = 0, num_ids = 0;
    for (int i = 0; i < count; i++) {
        const struct draw *draw = draws[i];
        struct sampler_request request = sampler_request(draw);
        const struct sampling *s = request.settings;
        sampling_text *t = (sampling_text *)(void *)memory + i;
        *t = {s->temperature,
              s->top_p,
              s->min_p,
              s->presence_penalty,
              s->frequency_penalty,
              s->repetition_penalty,
              s->top_k,
              draw->num_top,
              request.greedy,
              draw->wants_logprob,
              request.uniform,
              num_biases,
              (int32_t)s->num_logit_bias,
              num_seen,
              request.num_seen,
              num_ids,
              (int32_t)draw->num_banned,
              num_ids + (int32_t)draw->num_banned,
              (int32_t)draw->num_ends};
        for (int32_t j = 0; j < t->num_bias; j++)
            biases[num_biases++] = s->logit_bias[j];
        for (int32_t j = 0; j < t->num_seen; j++)
            seen[num_seen++] = {request.seen[j], request.counts[request.seen[j]]};
        for (int32_t j = 0; j < t->num_banned; j++)
            ids[num_ids++] = draw->banned[j];
        for (int32_t j = 0; j < t->num_ends; j++)
            ids[num_ids++] = draw->ends[j];
    }
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
        bool there = i < vocab_size;
        draw->top[i].id = there ? drawn.top[i] : -1;
        draw->top[i].logprob =
            there ? logprob_from(drawn.top_logits[i], drawn.max, drawn.sum) : -INFINITY;
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
    void *results;
    if (device_allocate(backend, bytes, "what is asked of draws", &drawing->device_asked, err) !=
            0 ||
        device_allocate(backend, count * sizeof(sampling_drawn), "what is drawn", &results, err) !=
            0)
        return -1;
    drawing->device_results = static_cast<sampling_drawn *>(results);
    for (struct draws &step : drawing->steps) {
        step.draws = static_cast<struct draw **>(calloc(count, sizeof *step.draws));
        if (step.draws == NULL)
            return error_set(err, ERROR_NO_MEMORY, "cuda: no memory");
        device_pin(backend, bytes, &step.asked);
        if (device_pin(backend, count * sizeof(sampling_drawn), &results))
            step.results = static_cast<sampling_drawn *>(results);
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
    device_free(backend, drawing->device_asked);
    device_free(backend, drawing->device_results);
    free(drawing);
    backend->drawing = NULL;
}

void drawing_take(struct backend *backend, int number)
{
    struct draws *step = &backend->drawing->steps[number];
    for (int i = 0; i < step->count && backend->failure == cudaSuccess; i++)
        if (!step->draws[i]->dropped)
            take(step->draws[i], step->results[i], step->vocab_size);
    step->count = 0;
}

/* Queues the copy of the requests to the device. */
static void ask(struct backend *backend, struct draw *const *draws, int count, const layout &at)
{
    struct drawing *drawing = backend->drawing;
    void *asked = drawing->steps[backend->sending].asked;
    fill(draws, count, at, static_cast<char *>(asked));
    device_check(backend,
                 cudaMemcpyAsync(drawing->device_asked, asked, at.bytes, cudaMemcpyHostToDevice,
                                 backend->stream),
                 "cudaMemcpy");
}

/* Queues the draws of these requests. */
static void answer(struct backend *backend, const float *logits, int32_t vocab_size, int count,
                   const layout &at, sampling_drawn *results)
{
    size_t all = (size_t)count * (size_t)vocab_size;
    size_t sums = sums_bytes((size_t)count, vocab_size);
    char *memory = (char *)device_scratch(backend, scratch_bytes((size_t)count, vocab_size));
    char *asked = (char *)backend->drawing->device_asked;
    sampling_lists lists = {(sampling_text *)asked, (logit_bias *)(asked + at.biases),
                            (seen_token *)(asked + at.seen), (int32_t *)(asked + at.ids)};
    float *after = (float *)(memory + sums);
    sampling_scratch scratch = {after, after + all, (int32_t *)after + 2 * all, (double *)memory};
    sampling_launch(backend, logits, vocab_size, count, lists, scratch, results);
}

extern "C" void cuda_draw(struct backend *backend, const float *logits, int32_t vocab_size,
                          struct draw *const *draws, int count)
{
    struct drawing *drawing = backend->drawing;
    struct draws *step = &drawing->steps[backend->sending];
    if (!backend->replaying) /* what is recorded must not hold the copy */
        graphs_finish(backend);
    for (int first = 0, n; first < count && backend->failure == cudaSuccess; first += n) {
        n = count - first;
        layout at = lay_out(draws + first, &n, drawing->lists_bytes);
        if (first > 0) /* what was asked before has been read */
            device_check(backend, cudaStreamSynchronize(backend->stream), "cudaStreamSynchronize");
        ask(backend, draws + first, n, at);
        graphs_finish(backend); /* one that comes again: behind the copy, which is then no wait */
        answer(backend, logits + (size_t)first * (size_t)vocab_size, vocab_size, n, at,
               drawing->device_results + first);
    }
    if (backend->failure != cudaSuccess)
        return;
    device_check(backend,
                 cudaMemcpyAsync(step->results, drawing->device_results,
                                 (size_t)count * sizeof(sampling_drawn), cudaMemcpyDeviceToHost,
                                 backend->stream),
                 "cudaMemcpy");
    memcpy(step->draws, draws, (size_t)count * sizeof(struct draw *));
    step->count = count;
    step->vocab_size = vocab_size;
}

/* Each row's token from the draw of the step before that it waits for. */
__global__ static void feed_kernel(const int32_t *token_draws, const sampling_drawn *drawn,
                                   const int32_t *row_span, int num_rows, int32_t *tokens,
                                   struct device_span *spans)
{
    grid_wait();
    int r = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (r >= num_rows || token_draws[r] < 0)
        return;
    int32_t next = drawn[token_draws[r]].next;
    if (next >= 0)
        tokens[r] = next;
    else
        spans[row_span[r]].slot = NULL; /* as of padding */
}

void drawing_feed(struct backend *backend, const int32_t *token_draws, const int32_t *row_span,
                  int num_rows, int32_t *tokens, struct device_span *spans)
{
    enum { THREADS = 128 };
    launch(backend, feed_kernel, dim3((unsigned)(num_rows + THREADS - 1) / THREADS), THREADS, 0,
           token_draws, (const sampling_drawn *)backend->drawing->device_results, row_span,
           num_rows, tokens, spans);
}
