/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence on the device against the CPU's, for every feature map with every gate and
 * position; and on the device the same bits whatever the chunks and the texts beside, and whether
 * heads share q, k or v or each has a copy, and whether one kernel does all or one computes phi and
 * the gates before it, and how S moves. */
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
    int rows, features, nu; /* of the map: rows of W, m */
    int texts, tokens[MOST_TEXTS];
};

/* Rows of a text that a step takes. */
struct part {
    int text, first, count;
};

enum array { Q, K, V, Y_Q, Y_K, GATE, GATE_2, COSINES, SINES, ARRAYS };

struct arrays {
    float *data[ARRAYS]; /* [all tokens of all texts, width]; a step's rows on a device */
    int width[ARRAYS];
    float *householder;
    int32_t *permutation; /* cycle, start, length, place: [4, m] */
};

static bool exponential(const struct problem *p)
{
    return formula_is_exponential(p->map);
}

static bool unitary(const struct problem *p)
{
    return p->place >= UNITARY && p->place <= UNITARY_ODD_EVEN;
}

/* Of k, f and M. */
static int key_heads(const struct sizes *s)
{
    return s->qk_heads < s->kv_heads ? s->qk_heads : s->kv_heads;
}

static int positioned(const struct problem *p)
{
    return unitary(p) ? 2 * p->features : p->features;
}

static size_t slot_bytes(const struct problem *p)
{
    size_t bytes = SLOT_STATE + ops_recurrent_bytes(p->size.value_dim, p->sum_norm, positioned(p)) *
                                    (size_t)p->size.heads;
    return (bytes + 63) / 64 * 64;
}

static int total_tokens(const struct problem *p)
{
    int total = 0;
    for (int i = 0; i < p->texts; i++)
        total += p->tokens[i];
    return total;
}

/* ---- arrays ---- */

static void set_widths(const struct problem *p, int width[ARRAYS])
{
    const struct sizes *s = &p->size;
    int per_head = p->place == UNITARY_HOUSEHOLDER ? s->heads : 1;
    width[Q] = s->qk_heads * s->head_dim;
    width[K] = key_heads(s) * s->head_dim;
    width[V] = s->kv_heads * s->value_dim;
    width[Y_Q] = s->qk_heads * p->rows;
    width[Y_K] = key_heads(s) * p->rows;
    width[GATE] = s->heads * (s->value_dim > p->features ? s->value_dim : p->features);
    width[GATE_2] = width[GATE];
    width[COSINES] = per_head * (s->head_dim > p->features ? s->head_dim : p->features);
    width[SINES] = width[COSINES];
}

/* The permutation j -> j + 1 in cycles of 3, 5, 7, ... elements, as engine/mixers/positions.c
 * describes one. */
static int32_t *make_cycles(int m)
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

static struct arrays make_arrays(const struct problem *p)
{
    struct arrays x;
    int total = total_tokens(p), m = p->features;
    set_widths(p, x.width);
    for (int i = 0; i < ARRAYS; i++)
        x.data[i] = bench_floats((size_t)total * (size_t)x.width[i], i >= COSINES ? 0.0f : -1.0f,
                                 1.0f, (uint32_t)i + 1);
    x.householder = bench_floats((size_t)m, -0.3f, 0.3f, 99);
    x.permutation = make_cycles(m);
    return x;
}

static void free_arrays(struct arrays *x)
{
    for (int i = 0; i < ARRAYS; i++)
        free(x->data[i]);
    free(x->householder);
    free(x->permutation);
}

static size_t array_bytes(const struct problem *p, int width)
{
    return (size_t)(total_tokens(p) * width + 1) * sizeof(float);
}

/* The same arrays on a device, for a step of all tokens. */
static struct arrays device_arrays(const struct bench_device *device, const struct problem *p,
                                   const struct arrays *x)
{
    struct arrays out = *x;
    size_t m = (size_t)p->features;
    for (int i = 0; i < ARRAYS; i++)
        out.data[i] = bench_memory(device, array_bytes(p, x->width[i]), NULL);
    out.householder = bench_memory(device, m * 4, x->householder);
    out.permutation = bench_memory(device, 4 * m * 4, x->permutation);
    return out;
}

static void free_device_arrays(const struct bench_device *device, const struct problem *p,
                               struct arrays *x)
{
    for (int i = 0; i < ARRAYS; i++)
        bench_free(device, x->data[i], array_bytes(p, x->width[i]));
    bench_free(device, x->householder, (size_t)p->features * 4);
    bench_free(device, x->permutation, 4 * (size_t)p->features * 4);
}

/* ---- the call ---- */

static struct rows rows_of(const struct arrays *x, enum array array)
{
    return (struct rows){x->width[array] > 0 ? x->data[array] : NULL, x->width[array]};
}

static struct ops_positions positions_of(const struct problem *p, const struct arrays *x)
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
    if (p->place >= PERMUTATION)
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
static void set_gate(const struct problem *p, const struct arrays *x, struct ops_recurrence *call)
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
    }
}

static struct ops_recurrence call_of(const struct problem *p, const struct arrays *x,
                                     const struct ops_positions *positions, float *h, float *maxima)
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

static void open_run(struct run *run, const struct bench_device *device, const struct problem *p,
                     const struct arrays *host)
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

static void close_run(struct run *run)
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

static int first_token(const struct problem *p, int text)
{
    int first = 0;
    for (int i = 0; i < text; i++)
        first += p->tokens[i];
    return first;
}

/* The parts' rows of the arrays, one after the other, go to the device. */
static void copy_rows(struct run *run, const struct part *parts, int num_parts)
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

static void step(struct run *run, const struct part *parts, int num_parts)
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
    ops->recurrence(run->device->backend, &call);
    ops->send(run->device->backend, NULL, 0);
    ops->receive(run->device->backend);
    for (int i = 0; i < num_parts; i++)
        ops->copy_out(run->device->backend,
                      run->out + (size_t)(first_token(p, parts[i].text) + parts[i].first) * width,
                      run->h + (size_t)spans[i].first_row * width,
                      (size_t)parts[i].count * width * sizeof(float));
    bench_check_status(run->device);
}

static void save(struct run *run)
{
    run->device->ops->copy_out(run->device->backend, run->saved, run->slots,
                               (size_t)run->problem->texts * slot_bytes(run->problem));
}

/* All texts together, `chunk` tokens of each at a time. */
static void run_together(struct run *run, int chunk)
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
static void run_alone(struct run *run)
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

static void compare(struct bench_count *count, const struct run *cpu, const struct run *cuda)
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

static void expect_bits(struct bench_count *count, const struct run *one, const struct run *other,
                        const char *what)
{
    const struct problem *p = one->problem;
    size_t width = (size_t)(p->size.heads * p->size.value_dim);
    size_t bytes = (size_t)total_tokens(p) * width * sizeof(float);
    bench_expect(count, memcmp(one->out, other->out, bytes) == 0, p->name, what, 0);
    bench_expect(count, memcmp(one->saved, other->saved, (size_t)p->texts * slot_bytes(p)) == 0,
                 p->name, what, 1);
}

static void check(struct bench_count *count, const struct bench_device *cpu,
                  const struct bench_device *cuda, const struct problem *p)
{
    struct arrays host = make_arrays(p);
    struct run reference, whole, alone, decode;
    open_run(&reference, cpu, p, &host);
    open_run(&whole, cuda, p, &host);
    open_run(&alone, cuda, p, &host);
    open_run(&decode, cuda, p, &host);
    run_together(&reference, MOST_ROWS);
    run_together(&whole, MOST_ROWS);
    compare(count, &reference, &whole);
    run_alone(&alone);
    expect_bits(count, &whole, &alone, "other bits alone and in chunks");
    run_together(&decode, total_tokens(p) > 200 ? 63 : 1);
    expect_bits(count, &whole, &decode, "other bits by small steps");
    close_run(&reference);
    close_run(&whole);
    close_run(&alone);
    close_run(&decode);
    free_arrays(&host);
}

/* ---- the problems ---- */

static void set_features(struct problem *p)
{
    int d = p->size.head_dim;
    p->nu = 1 + d % 3;
    p->rows = 0;
    p->features = d;
    if (p->map == FEATURE_FAVOR)
        p->rows = p->features = d + 3;
    else if (p->map == FEATURE_COS_SIN || p->map == FEATURE_HEDGEHOG) {
        p->rows = p->map == FEATURE_HEDGEHOG ? d : d + 1;
        p->features = 2 * p->rows;
    } else if (p->map == FEATURE_DPFP)
        p->features = 2 * d * p->nu;
}

static const char *const maps[] = {MODEL_FEATURE_MAPS(MODEL_NAME)};
static const char *const gates[] = {MODEL_GATES(MODEL_NAME)};
enum { MAPS = sizeof maps / sizeof *maps, GATES = sizeof gates / sizeof *gates };

static void set_name(struct problem *p)
{
    snprintf(p->name, sizeof p->name, "%s, %s, position %d%s, H %d/%d/%d, d %d, m %d, dv %d",
             maps[p->map], gates[p->gate], p->place, p->sum_norm ? ", sum_norm" : "", p->size.heads,
             p->size.qk_heads, p->size.kv_heads, p->size.head_dim, p->features, p->size.value_dim);
}

/* Every map with every gate that a model may join it with; positions and sizes take turns. */
static void check_all_maps(struct bench_count *count, const struct bench_device *cpu,
                           const struct bench_device *cuda)
{
    static const struct sizes sizes[] = {{2, 2, 2, 16, 16}, {3, 3, 1, 9, 12},  {2, 2, 1, 24, 40},
                                         {1, 1, 1, 13, 33}, {2, 2, 2, 30, 70}, {2, 1, 2, 12, 18},
                                         {4, 2, 4, 10, 16}};
    int turn = 0;
    for (int map = 0; map < MAPS; map++)
        for (int gate = 0; gate < GATES; gate++, turn++) {
            struct problem p = {.size = sizes[turn % 7],
                                .map = (enum feature_map)map,
                                .gate = (enum gate_kind)gate,
                                .place = (enum place)(turn * 7 % PLACES),
                                .texts = 3,
                                .tokens = {1, 19, 2}};
            if (exponential(&p) && gate == GATE_DELTA)
                continue; /* no model has it */
            p.sum_norm = gate <= GATE_SCALAR && map != FEATURE_IDENTITY && map != FEATURE_ELU &&
                         map != FEATURE_COS_SIN && p.place != UNITARY_HOUSEHOLDER;
            set_features(&p);
            set_name(&p);
            check(count, cpu, cuda, &p);
        }
}

static void check_sizes(struct bench_count *count, const struct bench_device *cpu,
                        const struct bench_device *cuda)
{
    static const struct problem problems[] = {
        /* ReGLA, and lengths around the chunks */
        {.size = {1, 1, 1, 64, 64},
         .map = FEATURE_EXP,
         .gate = GATE_REFINED,
         .place = BEFORE_HALF,
         .texts = 6,
         .tokens = {1, 2, 63, 64, 65, 300}},
        /* more rows than a block of threads has, with c beside them */
        {.size = {2, 2, 1, 33, 150},
         .map = FEATURE_EXP,
         .sum_norm = true,
         .texts = 2,
         .tokens = {5, 18}},
        {.size = {1, 1, 1, 130, 130},
         .map = FEATURE_RELU,
         .place = UNITARY,
         .sum_norm = true,
         .texts = 2,
         .tokens = {3, 17}},
        /* the last features in registers of one group, of two, and S in memory */
        {.size = {1, 1, 1, 256, 17}, .gate = GATE_GLA, .texts = 1, .tokens = {6}},
        {.size = {1, 1, 1, 512, 17}, .gate = GATE_FAST_DECAY, .texts = 1, .tokens = {6}},
        {.size = {1, 1, 1, 257, 20}, .gate = GATE_DELTA, .texts = 2, .tokens = {6, 3}},
        {.size = {1, 1, 1, 513, 20},
         .map = FEATURE_ELU_PLUS_1,
         .gate = GATE_DELTA,
         .texts = 1,
         .tokens = {6}},
        {.size = {2, 2, 1, 520, 40},
         .map = FEATURE_EXP,
         .sum_norm = true,
         .texts = 2,
         .tokens = {3, 4}},
        {.size = {1, 1, 1, 640, 16},
         .map = FEATURE_ELU,
         .gate = GATE_REFINED,
         .place = UNITARY,
         .texts = 1,
         .tokens = {4}},
        /* chunks of 49,104 bytes: with the kernel's own arrays more than 48 KiB */
        {.size = {1, 1, 1, 300, 16},
         .map = FEATURE_ELU,
         .gate = GATE_REFINED,
         .place = UNITARY,
         .texts = 1,
         .tokens = {4}},
        /* one row of S */
        {.size = {2, 2, 2, 1, 1},
         .map = FEATURE_EXP,
         .gate = GATE_REFINED,
         .texts = 2,
         .tokens = {3, 20}},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        struct problem p = problems[i];
        set_features(&p);
        set_name(&p);
        check(count, cpu, cuda, &p);
    }
}

/* Each of `shared` heads of `width` as often as heads read it, in each of `rows` rows. The array
 * becomes [rows, heads * width]. */
static void repeat(struct arrays *x, enum array array, int rows, int shared, int heads, int width)
{
    int stride = heads * width, from_stride = x->width[array];
    float *from = x->data[array], *out = malloc((size_t)(rows * stride) * sizeof(float) + 1);
    for (int i = 0; i < rows; i++)
        for (int h = 0; h < heads; h++)
            memcpy(out + (ptrdiff_t)i * stride + h * width,
                   from + (ptrdiff_t)i * from_stride + h * shared / heads * width,
                   (size_t)width * sizeof(float));
    free(from);
    x->data[array] = out;
    x->width[array] = stride;
}

/* Heads that share q, k or v are those written out, bit for bit. */
static void check_written_out(struct bench_count *count, const struct bench_device *cuda,
                              const struct problem *p)
{
    const struct sizes *s = &p->size;
    int rows = total_tokens(p), heads = s->heads;
    struct problem alone = *p;
    alone.size.qk_heads = alone.size.kv_heads = heads;
    struct arrays host = make_arrays(p), written = make_arrays(p);
    repeat(&written, Q, rows, s->qk_heads, heads, s->head_dim);
    repeat(&written, K, rows, key_heads(s), heads, s->head_dim);
    repeat(&written, V, rows, s->kv_heads, heads, s->value_dim);
    repeat(&written, Y_Q, rows, s->qk_heads, heads, p->rows);
    repeat(&written, Y_K, rows, key_heads(s), heads, p->rows);
    if (p->gate == GATE_GLA)
        repeat(&written, GATE, rows, key_heads(s), heads, p->features);
    struct run shared, each;
    open_run(&shared, cuda, p, &host);
    open_run(&each, cuda, &alone, &written);
    run_together(&shared, 7);
    run_together(&each, 7);
    size_t state = slot_bytes(p) - SLOT_STATE;
    size_t bytes = (size_t)(rows * heads * s->value_dim) * sizeof(float);
    bench_expect(count, memcmp(shared.out, each.out, bytes) == 0, p->name,
                 "other h with heads written out", 0);
    for (int i = 0; i < p->texts; i++)
        bench_expect(count,
                     memcmp(shared.saved + (size_t)i * slot_bytes(p) + SLOT_STATE,
                            each.saved + (size_t)i * slot_bytes(p) + SLOT_STATE, state) == 0,
                     p->name, "other S with heads written out", 0);
    close_run(&shared);
    close_run(&each);
    free_arrays(&host);
    free_arrays(&written);
}

static void check_shared_heads(struct bench_count *count, const struct bench_device *cpu,
                               const struct bench_device *cuda)
{
    static const struct problem problems[] = {
        /* values in groups: Gated DeltaNet, Mamba-2 */
        {.size = {4, 2, 4, 12, 18}, .gate = GATE_DELTA, .place = BEFORE_HALF},
        {.size = {6, 1, 6, 16, 33}, .gate = GATE_SCALAR},
        {.size = {2, 1, 2, 9, 20}, .map = FEATURE_HEDGEHOG, .sum_norm = true},
        /* three heads of q, two of v, as many of k */
        {.size = {6, 3, 2, 10, 16}, .map = FEATURE_EXP, .gate = GATE_GLA, .place = UNITARY},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        struct problem p = problems[i];
        p.texts = 2;
        p.tokens[0] = 3;
        p.tokens[1] = 20;
        set_features(&p);
        set_name(&p);
        check(count, cpu, cuda, &p);
        check_written_out(count, cuda, &p);
    }
}

/* So many texts of 12 heads fill a device (recurrence.cu, HEADS_AT_ONCE). */
#ifdef REGLA_CUDA_EMULATION
enum { FILLING = 9 };
#else
enum { FILLING = 23 };
#endif

/* Decode steps that fill a device, of models as they are, and steps where some texts have more than
 * one token: the same bits whatever is switched off. */
static const struct problem batches[] = {
    {.size = {12, 12, 12, 64, 64},
     .map = FEATURE_EXP,
     .gate = GATE_REFINED,
     .place = BEFORE_HALF,
     .texts = 70},
    {.size = {12, 12, 12, 64, 64}, .map = FEATURE_HEDGEHOG, .texts = 33},
    {.size = {12, 12, 12, 64, 64}, .map = FEATURE_DPFP, .gate = GATE_DELTA, .texts = FILLING},
    {.size = {12, 12, 12, 64, 64}, .map = FEATURE_COS_SIN, .gate = GATE_SCALAR, .texts = FILLING},
    /* c's rows in the only piece, and in several */
    {.size = {12, 12, 12, 64, 64}, .map = FEATURE_ELU_PLUS_1, .sum_norm = true, .texts = FILLING},
    {.size = {12, 12, 12, 64, 64}, .map = FEATURE_FAVOR, .sum_norm = true, .texts = FILLING},
    /* unequal pieces, a decay of features, heads that share others' */
    {.size = {12, 12, 12, 64, 70},
     .gate = GATE_FAST_DECAY,
     .place = UNITARY_HOUSEHOLDER,
     .texts = FILLING},
    {.size = {12, 12, 4, 128, 256}, .gate = GATE_GLA, .texts = FILLING},
    {.size = {16, 8, 16, 128, 128}, .gate = GATE_DELTA, .place = BEFORE_HALF, .texts = FILLING},
    {.size = {12, 6, 4, 64, 64},
     .map = FEATURE_EXP,
     .gate = GATE_REFINED,
     .place = PERMUTATION_HOUSEHOLDER,
     .texts = 23},
    {.size = {12, 12, 12, 256, 64}, .map = FEATURE_EXP, .gate = GATE_REFINED, .texts = FILLING},
    {.size = {12, 12, 12, 260, 16}, .map = FEATURE_RELU, .gate = GATE_REFINED, .texts = FILLING},
};

static void check_switches(struct bench_count *count, const struct problem *batch,
                           const struct ops_limits *limits)
{
    /* the first is what all others are held against, with more tokens of a text in a step */
    static const char *const without[] = {"features,bulk", "features,bulk", "features", "bulk", ""};
    enum { RUNS = sizeof without / sizeof *without };
    struct problem p = *batch;
    for (int i = 0; i < p.texts; i++)
        p.tokens[i] = 2 + i % 2;
    set_features(&p);
    set_name(&p);
    struct arrays host = make_arrays(&p);
    struct bench_device cuda[RUNS];
    struct run runs[RUNS];
    for (int i = 0; i < RUNS; i++) {
        setenv("REGLA_CUDA_WITHOUT", without[i], 1);
        cuda[i] = bench_open_cuda(ACTIVATIONS_F32, limits);
        open_run(&runs[i], &cuda[i], &p, &host);
        run_together(&runs[i], i == 0 ? 2 : 1);
        expect_bits(count, &runs[0], &runs[i], without[i]);
    }
    unsetenv("REGLA_CUDA_WITHOUT");
    for (int i = 0; i < RUNS; i++) {
        close_run(&runs[i]);
        cuda[i].ops->close(cuda[i].backend);
    }
    free_arrays(&host);
}

static void check_batches(struct bench_count *count)
{
    struct ops_limits limits = bench_limits(MOST_ROWS);
    limits.max_linear_heads = 16;
    limits.max_shared_state = 16 * ops_recurrent_bytes(64, true, 128);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
        check_switches(count, &batches[i], &limits);
}

int main(void)
{
    struct bench_device cpu, cuda;
    struct bench_count count = {0, 0};
    /* where there are few multiprocessors, the largest problem's texts take turns */
    struct ops_limits limits = bench_limits(MOST_ROWS);
    limits.max_shared_state = 2 * ops_recurrent_bytes(40, true, 520) / 3;
    bench_open(&cpu, &cuda, &limits);
    check_all_maps(&count, &cpu, &cuda);
    check_sizes(&count, &cpu, &cuda);
    check_shared_heads(&count, &cpu, &cuda);
    check_batches(&count);
    cpu.ops->close(cpu.backend);
    cuda.ops->close(cuda.backend);
    printf("cuda-recurrence: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed > 0;
}
