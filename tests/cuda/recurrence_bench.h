/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of the recurrence run: a problem (sizes, map, gate, position, texts), its arrays on a
 * device, the call of them, and steps of its texts in parts; and how two runs are compared. */
#ifndef TESTS_CUDA_RECURRENCE_BENCH_H
#define TESTS_CUDA_RECURRENCE_BENCH_H

#include "engine/ops/perform.h"
#include "tests/cuda/bench.h"

enum { MOST_TEXTS = 70, MOST_ROWS = 1024, SLOT_STATE = 256 };

enum place {
    NOWHERE,
    BEFORE_HALF,
    BEFORE_ADJACENT, /* some of the dimensions */
    AFTER_HALF,
    UNITARY,
    UNITARY_HOUSEHOLDER, /* angles per head */
    UNITARY_ODD_EVEN,
    ORTHOGONAL_HOUSEHOLDER,
    PERMUTATION,
    PERMUTATION_HOUSEHOLDER,
    PERMUTATION_ODD_EVEN,
    ENCODED, /* spe: two sines, more outputs than features, unless a problem says how many */
    ENCODED_GATED,
    PLACES
};

struct sizes {
    int heads, qk_heads, kv_heads, head_dim, value_dim;
};

struct problem {
    char name[96];
    struct sizes size;
    enum feature_map map;
    enum gate_kind gate;
    enum place place;
    bool sum_norm;
    int chunk;              /* C; 0: h reads S as it is after each token */
    int rows, features, nu; /* of the map: rows of W, m */
    int outputs;            /* of spe; 0: by the place */
    int texts, tokens[MOST_TEXTS];
};

/* Rows of a text that a step takes. */
struct part {
    int text, first, count;
};

enum array { Q, K, V, Y_Q, Y_K, GATE, GATE_2, ERASE, WRITE, COSINES, SINES, ARRAYS };

struct arrays {
    float *data[ARRAYS]; /* [all tokens of all texts, width]; a step's rows on a device */
    int width[ARRAYS];
    float *householder;
    int32_t *permutation; /* cycle, start, length, place: [4, m] */
    float *codes;         /* spe's: of q, then of k */
    float *per_head;      /* [H]: the decay of gated_delta and mamba2, and mamba2's skip */
};

static inline bool exponential(const struct problem *p)
{
    return formula_is_exponential(p->map);
}

static inline bool unitary(const struct problem *p)
{
    return p->place >= UNITARY && p->place <= UNITARY_ODD_EVEN;
}

/* Of k, f and M. */
static inline int key_heads(const struct sizes *s)
{
    return s->qk_heads < s->kv_heads ? s->qk_heads : s->kv_heads;
}

static inline bool encoded(const struct problem *p)
{
    return p->place == ENCODED || p->place == ENCODED_GATED;
}

static inline int positioned(const struct problem *p)
{
    if (encoded(p) && p->outputs > 0)
        return p->outputs;
    if (encoded(p))
        return p->place == ENCODED ? p->features + 7 : (p->features + 1) / 2;
    return unitary(p) ? 2 * p->features : p->features;
}

static inline size_t slot_bytes(const struct problem *p)
{
    int features = ops_state_features(positioned(p), p->chunk);
    size_t bytes = SLOT_STATE + ops_recurrent_bytes(p->size.value_dim, p->sum_norm, features) *
                                    (size_t)p->size.heads;
    return (bytes + 63) / 64 * 64;
}

static inline int total_tokens(const struct problem *p)
{
    int total = 0;
    for (int i = 0; i < p->texts; i++)
        total += p->tokens[i];
    return total;
}

/* Of a side: [H, m, 4 or 3, m2]. */
static inline size_t code_floats(const struct problem *p)
{
    size_t rows = (size_t)(p->size.heads * p->features) * (p->place == ENCODED ? 4 : 3);
    return encoded(p) ? rows * (size_t)positioned(p) : 1;
}

/* ---- arrays ---- */

static inline void set_widths(const struct problem *p, int width[ARRAYS])
{
    const struct sizes *s = &p->size;
    int per_head = p->place == UNITARY_HOUSEHOLDER ? s->heads : p->place == ENCODED ? 2 : 1;
    width[Q] = s->qk_heads * s->head_dim;
    width[K] = key_heads(s) * s->head_dim;
    width[V] = s->kv_heads * s->value_dim;
    width[Y_Q] = s->qk_heads * p->rows;
    width[Y_K] = key_heads(s) * p->rows;
    width[GATE] = s->heads * (s->value_dim > p->features ? s->value_dim : p->features);
    width[GATE_2] = width[GATE];
    width[ERASE] = width[WRITE] = p->gate == GATE_RWKV7 ? key_heads(s) * positioned(p) : 1;
    width[COSINES] = per_head * (s->head_dim > p->features ? s->head_dim : p->features);
    width[SINES] = width[COSINES];
}

/* The permutation j -> j + 1 in cycles of 3, 5, 7, ... elements, as engine/mixers/positions.c
 * describes one. */
static inline int32_t *make_cycles(int m)
{
    int32_t *out = malloc(4 * (size_t)m * sizeof *out);
    for (int first = 0, length = 3; first < m; first += length, length += 2)
        for (int j = first; j < m && j < first + length; j++) {
            out[j] = j;
            out[m + j] = first;
            out[2 * m + j] = m - first < length ? m - first : length;
            out[3 * m + j] = j - first;
        }
    return out;
}

static inline struct arrays make_arrays(const struct problem *p)
{
    struct arrays x;
    int total = total_tokens(p), m = p->features;
    set_widths(p, x.width);
    for (int i = 0; i < ARRAYS; i++) {
        /* what is erased is of length 1, or S grows with every token */
        const bool shorter = i == ERASE || i == WRITE;
        x.data[i] = bench_floats((size_t)total * (size_t)x.width[i],
                                 i >= COSINES ? 0.0f
                                 : shorter    ? -0.1f
                                              : -1.0f,
                                 shorter ? 0.1f : 1.0f, (uint32_t)i + 1);
    }
    x.householder = bench_floats((size_t)m, -0.3f, 0.3f, 99);
    x.permutation = make_cycles(m);
    x.codes = bench_floats(2 * code_floats(p), -0.2f, 0.3f, 98);
    x.per_head = bench_floats((size_t)p->size.heads, 0.1f, 1.0f, 97);
    return x;
}

static inline void free_arrays(struct arrays *x)
{
    for (int i = 0; i < ARRAYS; i++)
        free(x->data[i]);
    free(x->householder);
    free(x->permutation);
    free(x->codes);
    free(x->per_head);
}

static inline size_t array_bytes(const struct problem *p, int width)
{
    return (size_t)(total_tokens(p) * width + 1) * sizeof(float);
}

/* The same arrays on a device, for a step of all tokens. */
static inline struct arrays device_arrays(const struct bench_device *device,
                                          const struct problem *p, const struct arrays *x)
{
    struct arrays out = *x;
    size_t m = (size_t)p->features;
    for (int i = 0; i < ARRAYS; i++)
        out.data[i] = bench_memory(device, array_bytes(p, x->width[i]), NULL);
    out.householder = bench_memory(device, m * 4, x->householder);
    out.permutation = bench_memory(device, 4 * m * 4, x->permutation);
    out.codes = bench_memory(device, 2 * code_floats(p) * 4, x->codes);
    out.per_head = bench_memory(device, (size_t)p->size.heads * 4, x->per_head);
    return out;
}

static inline void free_device_arrays(const struct bench_device *device, const struct problem *p,
                                      struct arrays *x)
{
    for (int i = 0; i < ARRAYS; i++)
        bench_free(device, x->data[i], array_bytes(p, x->width[i]));
    bench_free(device, x->householder, (size_t)p->features * 4);
    bench_free(device, x->permutation, 4 * (size_t)p->features * 4);
    bench_free(device, x->codes, 2 * code_floats(p) * 4);
    bench_free(device, x->per_head, (size_t)p->size.heads * 4);
}

/* ---- the call ---- */

static inline struct rows rows_of(const struct arrays *x, enum array array)
{
    return (struct rows){x->width[array] > 0 ? x->data[array] : NULL, x->width[array]};
}

static inline struct ops_positions positions_of(const struct problem *p, const struct arrays *x)
{
    int m = p->features, dim = p->place <= BEFORE_ADJACENT ? p->size.head_dim : m;
    struct ops_positions out = {.kind = POSITION_ROPE, .dim = dim, .rotary_dims = dim / 2 * 2};
    out.cosines = rows_of(x, COSINES);
    out.sines = rows_of(x, SINES);
    out.householder = x->householder;
    out.cycle = x->permutation;
    out.start = x->permutation + m;
    out.length = x->permutation + 2 * m;
    out.place = x->permutation + 3 * m;
    if (p->place == BEFORE_ADJACENT || p->place == ORTHOGONAL_HOUSEHOLDER)
        out.pairing = ROPE_PAIRING_ADJACENT;
    if (p->place == BEFORE_ADJACENT)
        out.rotary_dims = dim / 4 * 2;
    if (unitary(p))
        out.kind = POSITION_LRPE_UNITARY;
    if (p->place == ORTHOGONAL_HOUSEHOLDER)
        out.kind = POSITION_LRPE_ORTHOGONAL;
    if (encoded(p)) {
        out.kind = POSITION_SPE;
        out.num_sines = p->place == ENCODED ? 2 : 1;
        out.gated = p->place == ENCODED_GATED;
        out.outputs = positioned(p);
        out.code_q = x->codes;
        out.code_k = x->codes + code_floats(p);
    } else if (p->place >= PERMUTATION)
        out.kind = POSITION_LRPE_PERMUTATION;
    if (p->place == UNITARY_HOUSEHOLDER || p->place == ORTHOGONAL_HOUSEHOLDER ||
        p->place == PERMUTATION_HOUSEHOLDER)
        out.basis = BASIS_HOUSEHOLDER;
    if (p->place == UNITARY_ODD_EVEN || p->place == PERMUTATION_ODD_EVEN)
        out.basis = BASIS_ODD_EVEN;
    if (p->place == UNITARY_HOUSEHOLDER)
        out.angles_per_head = m;
    return out;
}

/* As engine/mixers/gates.c. */
static inline void set_gate(const struct problem *p, const struct arrays *x,
                            struct ops_recurrence *call)
{
    struct rows u = rows_of(x, GATE), w = rows_of(x, GATE_2);
    switch (p->gate) {
    case GATE_NONE:
        break;
    case GATE_SCALAR:
        call->row_decay = (struct ops_factor){FORMULA_SIGMOID, .u = u};
        call->row_decay_per_head = true;
        call->input_scale = (struct ops_factor){FORMULA_ONE_MINUS_SIGMOID, .u = u};
        break;
    case GATE_FAST_DECAY:
        call->row_decay = (struct ops_factor){FORMULA_SIGMOID, .u = u};
        call->feature_decay = (struct ops_factor){FORMULA_SIGMOID, .u = w};
        break;
    case GATE_REFINED:
        call->row_decay = (struct ops_factor){FORMULA_REFINED_GATE, .u = u, .w = w};
        break;
    case GATE_GLA:
        call->feature_decay = (struct ops_factor){FORMULA_GLA_GATE, 3.5f, .u = u};
        break;
    case GATE_DELTA:
        call->input_scale = (struct ops_factor){FORMULA_SIGMOID, .u = u};
        call->delta = (struct ops_factor){FORMULA_SIGMOID, .u = u};
        break;
    case GATE_GATED_DELTA:
        call->row_decay =
            (struct ops_factor){FORMULA_SOFTPLUS_DECAY, .u = w, .w = {x->per_head, 0}};
        call->row_decay_per_head = true;
        call->input_scale = (struct ops_factor){FORMULA_SCALED_SIGMOID, 1.5f, .u = u};
        call->delta = call->input_scale;
        break;
    case GATE_MAMBA2:
        call->row_decay =
            (struct ops_factor){FORMULA_SOFTPLUS_DECAY, .u = u, .w = {x->per_head, 0}};
        call->row_decay_per_head = true;
        call->input_scale = (struct ops_factor){FORMULA_SOFTPLUS, .u = u};
        call->skip = x->per_head;
        break;
    case GATE_FIXED:
        call->row_decay = (struct ops_factor){FORMULA_IDENTITY, .u = {x->per_head, 0}};
        call->row_decay_per_head = true;
        break;
    case GATE_HGRN2:
        call->feature_decay = (struct ops_factor){FORMULA_FORGET, .u = u, .w = w};
        break;
    case GATE_KDA:
        call->feature_decay = (struct ops_factor){FORMULA_BOUNDED_DECAY, -1.5f, .u = u, .w = w};
        call->input_scale = (struct ops_factor){FORMULA_SCALED_SIGMOID, 1.5f, .u = w};
        call->delta = call->input_scale;
        break;
    case GATE_RWKV7:
        call->feature_decay = (struct ops_factor){FORMULA_RWKV7_DECAY, .u = u};
        call->erase = rows_of(x, ERASE);
        call->write = rows_of(x, WRITE);
        break;
    }
}

static inline struct ops_recurrence call_of(const struct problem *p, const struct arrays *x,
                                            const struct ops_positions *positions, float *h,
                                            float *maxima)
{
    const struct sizes *s = &p->size;
    bool before = p->place == BEFORE_HALF || p->place == BEFORE_ADJACENT;
    struct ops_recurrence call = {
        .num_heads = s->heads,
        .num_qk_heads = s->qk_heads,
        .num_kv_heads = s->kv_heads,
        .value_dim = s->value_dim,
        .features = positioned(p),
        .sum_norm = p->sum_norm,
        .chunk_size = p->chunk,
        .phi = {.map = p->map,
                .query_scale = 0.5f,
                .head_dim = s->head_dim,
                .feature_rows = p->rows,
                .features = p->features,
                .dpfp_nu = p->nu,
                .before = before ? positions : NULL,
                .after = before || p->place == NOWHERE ? NULL : positions,
                .y_q = rows_of(x, Y_Q),
                .y_k = rows_of(x, Y_K),
                .maxima = {maxima, key_heads(s)}},
        .q = rows_of(x, Q),
        .k = rows_of(x, K),
        .v = rows_of(x, V),
        .h = {h, s->heads * s->value_dim},
        .state_offset = SLOT_STATE,
    };
    set_gate(p, x, &call);
    return call;
}

/* ---- a device, its texts and steps ---- */

struct run {
    const struct bench_device *device;
    const struct problem *problem;
    const struct arrays *host;
    struct arrays arrays;
    char *slots; /* [texts, slot_bytes], on the device */
    float *h, *maxima;
    float *out;  /* [all tokens, H*dv], on the host; NaN where no step has come */
    char *saved; /* the slots at the end, on the host */
};

static inline void open_run(struct run *run, const struct bench_device *device,
                            const struct problem *p, const struct arrays *host)
{
    size_t width = (size_t)(p->size.heads * p->size.value_dim);
    size_t bytes = slot_bytes(p), count = (size_t)total_tokens(p) * width;
    char *slots = calloc((size_t)p->texts, bytes);
    for (int i = 0; i < p->texts; i++)
        for (int j = 0; j < SLOT_STATE / 4; j++)
            ((float *)(void *)(slots + (size_t)i * bytes))[j] = -INFINITY;
    *run = (struct run){.device = device, .problem = p, .host = host};
    run->arrays = device_arrays(device, p, host);
    run->slots = bench_memory(device, (size_t)p->texts * bytes, slots);
    run->h = bench_memory(device, count * sizeof(float), NULL);
    run->maxima = bench_memory(device, array_bytes(p, key_heads(&p->size)), NULL);
    run->out = malloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        run->out[i] = NAN;
    run->saved = slots;
}

static inline void close_run(struct run *run)
{
    const struct problem *p = run->problem;
    size_t width = (size_t)(p->size.heads * p->size.value_dim);
    free_device_arrays(run->device, p, &run->arrays);
    bench_free(run->device, run->slots, (size_t)p->texts * slot_bytes(p));
    bench_free(run->device, run->h, (size_t)total_tokens(p) * width * 4);
    bench_free(run->device, run->maxima, array_bytes(p, key_heads(&p->size)));
    free(run->out);
    free(run->saved);
}

static inline int first_token(const struct problem *p, int text)
{
    int first = 0;
    for (int i = 0; i < text; i++)
        first += p->tokens[i];
    return first;
}

/* The parts' rows of the arrays, one after the other, go to the device. */
static inline void copy_rows(struct run *run, const struct part *parts, int num_parts)
{
    const struct ops *ops = run->device->ops;
    for (int i = 0; i < ARRAYS; i++) {
        size_t width = (size_t)run->host->width[i], at = 0;
        for (int j = 0; j < num_parts && width > 0; j++) {
            size_t first = (size_t)(first_token(run->problem, parts[j].text) + parts[j].first);
            size_t count = (size_t)parts[j].count * width;
            ops->copy_in(run->device->backend, run->arrays.data[i] + at,
                         run->host->data[i] + first * width, count * sizeof(float));
            at += count;
        }
    }
}

static inline void step(struct run *run, const struct part *parts, int num_parts)
{
    static int32_t tokens[MOST_ROWS];
    static int64_t positions[MOST_ROWS];
    struct batch_span spans[MOST_TEXTS];
    const struct problem *p = run->problem;
    const struct ops *ops = run->device->ops;
    size_t width = (size_t)(p->size.heads * p->size.value_dim);
    int rows = 0;
    for (int i = 0; i < num_parts; i++) {
        spans[i] = (struct batch_span){.first_row = rows,
                                       .num_rows = parts[i].count,
                                       .position = parts[i].first,
                                       .slot = run->slots + (size_t)parts[i].text * slot_bytes(p)};
        for (int j = 0; j < parts[i].count; j++)
            positions[rows++] = parts[i].first + j;
    }
    const struct batch batch = {.num_rows = rows,
                                .num_spans = num_parts,
                                .tokens = tokens,
                                .positions = positions,
                                .spans = spans};
    struct ops_positions place = positions_of(p, &run->arrays);
    struct ops_recurrence call = call_of(p, &run->arrays, &place, run->h, run->maxima);
    copy_rows(run, parts, num_parts);
    ops->fill(run->device->backend, run->h, NAN, (size_t)rows * width);
    ops->begin(run->device->backend, &batch);
    perform_recurrence(ops, run->device->backend, &call);
    ops->send(run->device->backend, NULL, 0);
    ops->receive(run->device->backend);
    for (int i = 0; i < num_parts; i++)
        ops->copy_out(run->device->backend,
                      run->out + (size_t)(first_token(p, parts[i].text) + parts[i].first) * width,
                      run->h + (size_t)spans[i].first_row * width,
                      (size_t)parts[i].count * width * sizeof(float));
    bench_check_status(run->device);
}

static inline void save(struct run *run)
{
    run->device->ops->copy_out(run->device->backend, run->saved, run->slots,
                               (size_t)run->problem->texts * slot_bytes(run->problem));
}

/* All texts together, `chunk` tokens of each at a time. */
static inline void run_together(struct run *run, int chunk)
{
    const struct problem *p = run->problem;
    for (int done = 0, parts = 1; parts > 0; done += chunk) {
        struct part part[MOST_TEXTS];
        parts = 0;
        for (int i = 0; i < p->texts; i++)
            if (done < p->tokens[i])
                part[parts++] = (struct part){
                    i, done, p->tokens[i] - done < chunk ? p->tokens[i] - done : chunk};
        if (parts > 0)
            step(run, part, parts);
    }
    save(run);
}

/* One text after the other, the last first, in chunks of 1, 2, 3, ... tokens. */
static inline void run_alone(struct run *run)
{
    const struct problem *p = run->problem;
    for (int i = p->texts - 1; i >= 0; i--)
        for (int done = 0, chunk = 1; done < p->tokens[i]; done += chunk++) {
            int left = p->tokens[i] - done;
            step(run, &(struct part){i, done, left < chunk ? left : chunk}, 1);
        }
    save(run);
}

/* ---- comparing ---- */

static inline void compare(struct bench_count *count, const struct run *cpu, const struct run *cuda)
{
    const struct problem *p = cuda->problem;
    size_t width = (size_t)(p->size.heads * p->size.value_dim);
    size_t state = (slot_bytes(p) - SLOT_STATE) / sizeof(float);
    for (int i = 0; i < p->texts; i++) {
        size_t first = (size_t)first_token(p, i) * width;
        /* sums of up to some thousands of f32 products in another order */
        double distance =
            bench_distance(cuda->out + first, cpu->out + first, (size_t)p->tokens[i] * width);
        bench_expect(count, distance < 2e-5, p->name, "h differs from the CPU's", distance);
        const float *a = (const float *)(const void *)(cuda->saved + (size_t)i * slot_bytes(p));
        const float *b = (const float *)(const void *)(cpu->saved + (size_t)i * slot_bytes(p));
        distance = bench_distance(a + SLOT_STATE / 4, b + SLOT_STATE / 4, state);
        bench_expect(count, distance < 2e-5, p->name, "S differs from the CPU's", distance);
        if (exponential(p)) {
            distance = bench_distance(a, b, (size_t)key_heads(&p->size));
            /* favor's exponents lose a sum of d squares, which has another order */
            double most = p->map == FEATURE_FAVOR ? 5e-6 : 1e-6;
            bench_expect(count, distance < most, p->name, "M differs from the CPU's", distance);
        }
    }
}

static inline void expect_bits(struct bench_count *count, const struct run *one,
                               const struct run *other, const char *what)
{
    const struct problem *p = one->problem;
    size_t width = (size_t)(p->size.heads * p->size.value_dim);
    size_t bytes = (size_t)total_tokens(p) * width * sizeof(float);
    bench_expect(count, memcmp(one->out, other->out, bytes) == 0, p->name, what, 0);
    bench_expect(count, memcmp(one->saved, other->saved, (size_t)p->texts * slot_bytes(p)) == 0,
                 p->name, what, 1);
}

#endif
