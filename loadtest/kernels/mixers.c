/* SPDX-License-Identifier: Apache-2.0 */
/* The row recurrence of linear mixers and attention, for decoding (one row of each text) and for
 * prompts. */
#include "engine/ops/perform.h"
#include "loadtest/kernels/job.h"

struct job_case {
    const char *name;
    int heads, kv_heads, dim, value_dim;
    /* the recurrence's */
    int qk_heads; /* 0: as many as heads */
    enum feature_map map;
    struct ops_factor row_decay, feature_decay, input_scale, delta; /* formulas only */
    bool per_head, has_row_decay, has_feature_decay, has_delta;
    /* attention's */
    enum kv_format kv;
    enum window_kind window;
    int window_size;
};

enum { H, Q, K, V, GATE, GATE_2, MAXIMA };

/* Heads of q, and of the recurrence's k, f and M. */
static int query_heads(const struct job_case *c)
{
    return c->qk_heads > 0 ? c->qk_heads : c->heads;
}

static int key_heads(const struct job_case *c)
{
    return query_heads(c) < c->kv_heads ? query_heads(c) : c->kv_heads;
}

static size_t state_bytes(const struct job_case *c)
{
    return 64 + (size_t)c->heads * ops_recurrent_bytes(c->value_dim, false, c->dim);
}

static struct ops_factor factor(const struct job_run *run, const struct ops_factor *formula,
                                bool present, int width)
{
    struct ops_factor out = *formula;
    if (present) {
        out.u = job_rows(run, GATE, width);
        out.w = job_rows(run, GATE_2, width);
    }
    return out;
}

static void queue_recurrence(const struct job_run *run, int call)
{
    const struct job_case *c = run->job->parameters;
    size_t base = (size_t)(call % run->job->copies) * state_bytes(c);
    int gate = c->per_head ? c->heads : c->heads * c->value_dim;
    perform_recurrence(run->device->ops, run->device->backend,
                       &(struct ops_recurrence){
                           .num_heads = c->heads,
                           .num_qk_heads = query_heads(c),
                           .num_kv_heads = c->kv_heads,
                           .value_dim = c->value_dim,
                           .features = c->dim,
                           .row_decay_per_head = c->per_head,
                           .phi = {.map = c->map,
                                   .query_scale = 0.5f,
                                   .head_dim = c->dim,
                                   .features = c->dim,
                                   .maxima = job_rows(run, MAXIMA, key_heads(c)),
                                   .maxima_offset = base},
                           .q = job_rows(run, Q, query_heads(c) * c->dim),
                           .k = job_rows(run, K, key_heads(c) * c->dim),
                           .v = job_rows(run, V, c->kv_heads * c->value_dim),
                           .row_decay = factor(run, &c->row_decay, c->has_row_decay, gate),
                           .feature_decay = factor(run, &c->feature_decay, c->has_feature_decay,
                                                   key_heads(c) * c->dim),
                           .input_scale = factor(run, &c->input_scale, c->has_delta, c->heads),
                           .delta = factor(run, &c->delta, c->has_delta, c->heads),
                           .h = job_rows(run, H, c->heads * c->value_dim),
                           .state_offset = base + 64});
}

static void queue_attention(const struct job_run *run, int call)
{
    const struct job_case *c = run->job->parameters;
    (void)call;
    perform_attention(run->device->ops, run->device->backend,
                      &(struct ops_attention){
                          .num_heads = c->heads,
                          .num_kv_heads = c->kv_heads,
                          .key_dim = c->dim,
                          .value_dim = c->value_dim,
                          .scale = (float)(1.0 / sqrt(c->dim)),
                          .window = c->window,
                          .window_size = c->window_size,
                          .kv = c->kv,
                          .q = job_rows(run, Q, c->heads * c->dim),
                          .k = job_rows(run, K, c->kv_heads * c->dim),
                          .v = job_rows(run, V, c->kv_heads * c->value_dim),
                          .h = job_rows(run, H, c->heads * c->value_dim),
                      });
}

static void set_arrays(struct job *job, const struct job_case *c)
{
    size_t n = (size_t)job->texts * (size_t)job->rows, heads = (size_t)c->heads;
    size_t kv_heads = (size_t)c->kv_heads, dim = (size_t)c->dim, value_dim = (size_t)c->value_dim;
    size_t gate = heads * (dim > value_dim ? dim : value_dim);
    job->arrays[H] = (struct job_array){n * heads * value_dim, 0, 0, true, 0};
    job->arrays[Q] = (struct job_array){n * heads * dim, -1, 1, false, 0};
    job->arrays[K] = (struct job_array){n * kv_heads * dim, -1, 1, false, 0};
    if (c->has_delta)
        job->arrays[Q].unit = job->arrays[K].unit = c->dim;
    job->arrays[V] = (struct job_array){n * kv_heads * value_dim, -1, 1, false, 0};
    job->arrays[GATE] = (struct job_array){n * gate, -1, 3, false, 0};
    job->arrays[GATE_2] = (struct job_array){n * gate, -1, 1, false, 0};
    job->arrays[MAXIMA] = (struct job_array){n * kv_heads, 0, 0, false, 0};
}

static void use_recurrence(const struct job_case *c, int texts, int rows, int copies, job_use *use,
                           void *context)
{
    struct job job = {.parameters = c, .texts = texts, .rows = rows, .copies = copies};
    double n = (double)texts * rows, state = (double)c->heads * c->value_dim * c->dim;
    job.queue = queue_recurrence;
    job.slot_bytes = state_bytes(c);
    job.tolerance = 2e-5; /* f32 sums in another order */
    job.bytes = 8 * state * texts + 4 * n *
                                        ((query_heads(c) + key_heads(c)) * c->dim +
                                         (c->heads + c->kv_heads) * c->value_dim);
    if (c->has_row_decay)
        job.bytes += 8 * n * c->heads * (c->per_head ? 1 : c->value_dim);
    job.operations = 6 * state * n;
    set_arrays(&job, c);
    snprintf(job.name, sizeof job.name, "recurrence %s, H %d, d %d, dv %d, %d x %d rows", c->name,
             c->heads, c->dim, c->value_dim, texts, rows);
    use(&job, context);
}

static void use_attention(const struct job_case *c, int texts, int rows, int position, job_use *use,
                          void *context)
{
    struct job job = {
        .parameters = c, .texts = texts, .rows = rows, .position = position, .copies = 1};
    int64_t ring = c->window == WINDOW_FULL ? 0 : (c->window_size + OPS_TILE - 1) / OPS_TILE;
    double keys = position + (rows + 1) / 2.0, n = (double)texts * rows;
    if (c->window != WINDOW_FULL && keys > c->window_size)
        keys = c->window_size;
    job.queue = queue_attention;
    job.slot_bytes =
        64 + (size_t)(ring * c->kv_heads) * ops_tile_bytes(c->dim, c->value_dim, KV_F32);
    job.page_bytes = c->window != WINDOW_FULL
                         ? 0
                         : (size_t)c->kv_heads * ops_tile_bytes(c->dim, c->value_dim, c->kv);
    job.tolerance = 2e-5; /* f32 sums in another order; K and V are rounded alike */
    job.bytes = texts * (double)ops_kv_bytes(c->kv) * (position + rows) * c->kv_heads *
                    (c->dim + c->value_dim) +
                4 * n * (c->heads + c->kv_heads) * (c->dim + c->value_dim);
    job.operations = 2 * n * c->heads * keys * (c->dim + c->value_dim);
    set_arrays(&job, c);
    snprintf(job.name, sizeof job.name, "attention %s, kv %s, H %d/%d, %d x %d rows at %d", c->name,
             kv_format_name(c->kv), c->heads, c->kv_heads, texts, rows, position);
    use(&job, context);
}

#define REGLA                                  \
    .map = FEATURE_EXP, .has_row_decay = true, \
    .row_decay = {FORMULA_REFINED_GATE, 0, {NULL, 0}, {NULL, 0}}
#define GLA .has_feature_decay = true, .feature_decay = {FORMULA_GLA_GATE, 16, {NULL, 0}, {NULL, 0}}
/* With keys of length 1, as models have them: I - beta k k^T makes no state longer then. With
 * longer ones states grow until they are infinite. */
#define DELTA                                                                     \
    .has_delta = true, .input_scale = {FORMULA_SIGMOID, 0, {NULL, 0}, {NULL, 0}}, \
    .delta = {FORMULA_SIGMOID, 0, {NULL, 0}, {NULL, 0}}

/* Gated DeltaNet: values in groups of heads that share q and k, a decay of each head. */
#define GATED_DELTA(queries)                                               \
    DELTA, .qk_heads = (queries), .has_row_decay = true, .per_head = true, \
           .row_decay = {FORMULA_SIGMOID, 0, {NULL, 0}, {NULL, 0}}

void recurrence_jobs(int rows, job_use *use, void *context)
{
    static const struct job_case checked[] = {{"regla", 2, 2, 64, 64, REGLA},
                                              {"regla", 3, 1, 33, 17, REGLA},
                                              {"gla", 2, 1, 128, 40, GLA},
                                              {"delta", 1, 1, 30, 33, DELTA},
                                              {"gated delta", 4, 4, 30, 33, GATED_DELTA(2)},
                                              {"none", 2, 2, 9, 12, .map = FEATURE_RELU}};
    static const struct job_case timed[] = {{"regla", 12, 12, 64, 64, REGLA},
                                            {"gla", 4, 4, 128, 256, GLA},
                                            {"delta", 12, 12, 128, 64, DELTA},
                                            {"gated delta", 16, 16, 128, 128, GATED_DELTA(8)}};
    static const int shapes[][3] = {/* texts, rows, copies */
                                    {1, 1, 64},
                                    {64, 1, 16},
                                    {256, 1, 8},
                                    {1, 2048, 1},
                                    {16, 512, 1}};
    for (size_t i = 0; i < sizeof checked / sizeof *checked && rows > 0; i++)
        use_recurrence(&checked[i], rows == 1 ? bench_filling_texts(checked[i].heads) : 2, rows, 1,
                       use, context);
    for (size_t i = 0; i < sizeof timed / sizeof *timed && rows == 0; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            use_recurrence(&timed[i], shapes[s][0], shapes[s][1], shapes[s][2], use, context);
}

void attention_jobs(int rows, job_use *use, void *context)
{
    static const struct job_case checked[] = {
        {"full", 2, 1, 64, 64, .kv = KV_F32},
        {"full", 2, 2, 33, 17, .kv = KV_F32},
        {"full", 2, 1, 64, 64, .kv = KV_F16},
        {"full", 1, 1, 80, 48, .kv = KV_BF16},
        {"sliding 100", 2, 2, 32, 32, .kv = KV_F32, .window = WINDOW_SLIDING, .window_size = 100},
        {"block 64", 2, 2, 32, 32, .kv = KV_F32, .window = WINDOW_BLOCK, .window_size = 64}};
    static const struct job_case timed[] = {{"full", 12, 12, 64, 64, .kv = KV_F16},
                                            {"full", 32, 8, 128, 128, .kv = KV_BF16},
                                            {"full", 12, 12, 64, 64, .kv = KV_F32}};
    for (size_t i = 0; i < sizeof checked / sizeof *checked && rows > 0; i++)
        use_attention(&checked[i], 1, rows, 0, use, context);
    for (size_t i = 0; i < sizeof timed / sizeof *timed && rows == 0; i++) {
        use_attention(&timed[i], 1, 1, 8191, use, context);
        use_attention(&timed[i], 64, 1, 2047, use, context);
        use_attention(&timed[i], 1, 2048, 0, use, context);
    }
}
