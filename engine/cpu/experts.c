/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: the router's choice, products with chosen matrices, and the weighted sum.
 *
 * A routed product takes the step's pairs of a row and one of its experts in the order of experts,
 * so that each expert's matrix is read once. Their x is copied together, multiplied as the rows of
 * an ordinary product, and the results go where they belong. A row's sums do not depend on the rows
 * beside it, so no bit depends on who else chose the expert. */
#include "engine/cpu/device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Scratch of one product. */
struct routing {
    int32_t *pairs;  /* [max_rows * max_chosen]: row * chosen + i, in the order of experts */
    int32_t *starts; /* [max_experts + 1]: where each expert's begin */
    float *numbers;  /* [max_rows, max_routed]: x of all pairs, then their y */
    size_t num_pairs, num_floats;
};

int routing_prepare(struct backend *backend, const struct ops_limits *limits, struct error *err)
{
    if (limits->max_experts == 0)
        return 0;
    struct routing *routing = backend->routing = calloc(1, sizeof *routing);
    if (routing == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cpu: no memory for experts");
    routing->num_pairs = (size_t)limits->max_rows * (size_t)limits->max_chosen;
    routing->num_floats = (size_t)limits->max_rows * (size_t)limits->max_routed;
    routing->pairs = calloc(routing->num_pairs, sizeof *routing->pairs);
    routing->starts = calloc((size_t)limits->max_experts + 1, sizeof *routing->starts);
    routing->numbers = aligned_alloc(64, (routing->num_floats + 15) / 16 * 64);
    if (routing->pairs == NULL || routing->starts == NULL || routing->numbers == NULL)
        return error_set(err, ERROR_NO_MEMORY, "cpu: no memory for experts");
    return 0;
}

void routing_close(struct backend *backend)
{
    struct routing *routing = backend->routing;
    if (routing == NULL)
        return;
    free(routing->pairs);
    free(routing->starts);
    free(routing->numbers);
    free(routing);
    backend->routing = NULL;
}

static int expert_of(const struct ops_matmul *a, int pair)
{
    return (int)a->choices.data[pair / a->chosen * a->choices.stride + pair % a->chosen];
}

/* Sorts the pairs; those of an expert stay in the order of rows. */
static void sort_pairs(struct routing *routing, const struct ops_matmul *a)
{
    const int count = a->num_rows * a->chosen, experts = a->weight->heads;
    int32_t *starts = routing->starts;
    memset(starts, 0, (size_t)(experts + 1) * sizeof *starts);
    for (int p = 0; p < count; p++)
        starts[expert_of(a, p) + 1]++;
    for (int e = 0; e < experts; e++)
        starts[e + 1] += starts[e];
    for (int p = 0; p < count; p++) /* each start moves on to the next expert's */
        routing->pairs[starts[expert_of(a, p)]++] = p;
    for (int e = experts; e > 0; e--)
        starts[e] = starts[e - 1];
    starts[0] = 0;
}

struct pairs_job {
    const struct ops_matmul *arguments;
    const struct routing *routing;
    float *x, *y; /* of the pairs, side by side */
};

static void collect_inputs(struct backend *backend, const void *arguments, int first, int end)
{
    const struct pairs_job *job = arguments;
    const struct ops_matmul *a = job->arguments;
    const int64_t in = a->weight->in;
    (void)backend;
    for (int i = first; i < end; i++) {
        const int pair = job->routing->pairs[i], part = a->by_part ? pair % a->chosen : 0;
        memcpy(job->x + i * in, a->x.data + pair / a->chosen * a->x.stride + part * in,
               (size_t)in * sizeof(float));
    }
}

static void place_outputs(struct backend *backend, const void *arguments, int first, int end)
{
    const struct pairs_job *job = arguments;
    const struct ops_matmul *a = job->arguments;
    const int64_t out = a->weight->out;
    (void)backend;
    for (int i = first; i < end; i++) {
        const int pair = job->routing->pairs[i];
        memcpy(a->y.data + pair / a->chosen * a->y.stride + pair % a->chosen * out,
               job->y + i * out, (size_t)out * sizeof(float));
    }
}

void routing_multiply(struct backend *backend, const struct ops_matmul *a)
{
    struct routing *routing = backend->routing;
    const struct weight *weight = a->weight;
    const int pairs = a->num_rows * a->chosen;
    const struct pairs_job job = {a, routing, routing->numbers,
                                  routing->numbers + pairs * weight->in};
    assert(a->norm == NULL && a->next == NULL && !a->accumulate);
    assert((size_t)pairs <= routing->num_pairs &&
           (size_t)(pairs * (weight->in + weight->out)) <= routing->num_floats);
    sort_pairs(routing, a);
    rows_run(backend, collect_inputs, &job, pairs, CROSSING_COST * weight->in);
    for (int e = 0; e < weight->heads; e++) {
        const int64_t first = routing->starts[e];
        const struct ops_matmul own = {.weight = weight,
                                       .num_rows = routing->starts[e + 1] - (int)first,
                                       .x = {job.x + first * weight->in, weight->in},
                                       .y = {job.y + first * weight->out, weight->out},
                                       .activation = a->activation};
        if (own.num_rows > 0)
            product_of_expert(backend, &own, e);
    }
    rows_run(backend, place_outputs, &job, pairs, CROSSING_COST * weight->out);
}

static void route_rows(struct backend *backend, const void *arguments, int first, int end)
{
    const struct ops_route *a = arguments;
    (void)backend;
    for (int r = first; r < end; r++) {
        float *choices = a->choices.data + r * a->choices.stride;
        formula_route(a->scores.data + r * a->scores.stride, a->num_experts, a->chosen,
                      a->renormalize, choices, choices + a->chosen);
    }
}

void cpu_route(struct backend *backend, const struct ops_route *a)
{
    rows_run(backend, route_rows, a, a->num_rows, (int64_t)a->num_experts * (a->chosen + 16));
}

static void combine_rows(struct backend *backend, const void *arguments, int first, int end)
{
    const struct ops_combine *a = arguments;
    (void)backend;
    for (int r = first; r < end; r++) {
        const float *weights = a->choices.data + r * a->choices.stride + a->chosen;
        const float *x = a->x.data + r * a->x.stride;
        float *out = a->out.data + r * a->out.stride;
        for (int j = 0; j < a->num_cols; j++) {
            const float sum = formula_combine(weights, x + j, a->num_cols, a->chosen);
            out[j] = a->accumulate ? out[j] + sum : sum;
        }
    }
}

void cpu_combine(struct backend *backend, const struct ops_combine *a)
{
    rows_run(backend, combine_rows, a, a->num_rows, (int64_t)a->num_cols * a->chosen);
}
