/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence on the device against the CPU's, for every feature map with every gate and
 * position; and on the device the same bits whatever the chunks and the texts beside, and whether
 * heads share q, k or v or each has a copy, and whether one kernel does all or one computes phi and
 * the gates before it, and how S moves. */
#include "tests/cuda/recurrence_bench.h"

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
    else if (p->map == FEATURE_COS_SIN || p->map == FEATURE_HEDGEHOG ||
             p->map == FEATURE_UNIT_COS_SIN) {
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
    snprintf(p->name, sizeof p->name,
             "%s, %s, position %d%s, chunk %d, H %d/%d/%d, d %d, m %d, dv %d", maps[p->map],
             gates[p->gate], p->place, p->sum_norm ? ", sum_norm" : "", p->chunk, p->size.heads,
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
            if (exponential(&p) && gate >= GATE_DELTA)
                continue; /* no model has it */
            p.sum_norm = gate <= GATE_SCALAR && map != FEATURE_IDENTITY && map != FEATURE_ELU &&
                         map != FEATURE_COS_SIN && map != FEATURE_UNIT_COS_SIN &&
                         p.place != UNITARY_HOUSEHOLDER;
            if (encoded(&p) && (gate_does(p.gate) & DECAYS_FEATURES))
                p.place = PERMUTATION; /* no model has it */
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
        /* FLASH: S as of the chunk's start */
        {.size = {2, 2, 1, 20, 40},
         .map = FEATURE_ELU,
         .place = BEFORE_HALF,
         .chunk = 7,
         .texts = 4,
         .tokens = {1, 6, 15, 40}},
        {.size = {1, 1, 1, 100, 17},
         .place = UNITARY,
         .chunk = 16,
         .texts = 3,
         .tokens = {16, 17, 50}},
        {.size = {1, 1, 1, 300, 16}, .chunk = 1, .texts = 2, .tokens = {3, 5}},
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
        {.size = {1, 1, 1, 257, 20}, .gate = GATE_RWKV7, .texts = 2, .tokens = {6, 3}},
        {.size = {2, 2, 2, 64, 64}, .gate = GATE_RWKV7, .texts = 2, .tokens = {1, 40}},
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
        /* spe, with outputs in two groups of registers and fewer than features */
        {.size = {2, 2, 1, 250, 18},
         .map = FEATURE_EXP,
         .gate = GATE_REFINED,
         .place = ENCODED,
         .texts = 2,
         .tokens = {3, 20}},
        {.size = {2, 2, 2, 30, 40},
         .map = FEATURE_ELU_PLUS_1,
         .sum_norm = true,
         .place = ENCODED_GATED,
         .texts = 2,
         .tokens = {3, 20}},
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
        {.size = {4, 2, 4, 12, 18}, .gate = GATE_GATED_DELTA},
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

/* Decode steps that fill a device, of models as they are, and steps where some texts have more than
 * one token: the same bits whatever is switched off. There are more texts where these do not fill
 * it. */
static const struct problem batches[] = {
    {.size = {12, 12, 12, 64, 64},
     .map = FEATURE_EXP,
     .gate = GATE_REFINED,
     .place = BEFORE_HALF,
     .texts = 70},
    {.size = {12, 12, 12, 64, 64}, .map = FEATURE_HEDGEHOG, .texts = 33},
    {.size = {12, 12, 12, 64, 64}, .map = FEATURE_DPFP, .gate = GATE_DELTA},
    {.size = {12, 12, 12, 64, 64}, .map = FEATURE_COS_SIN, .gate = GATE_SCALAR},
    /* c's rows in the only piece, and in several */
    {.size = {12, 12, 12, 64, 64}, .map = FEATURE_ELU_PLUS_1, .sum_norm = true},
    {.size = {12, 12, 12, 64, 64}, .map = FEATURE_FAVOR, .sum_norm = true},
    /* unequal pieces, a decay of features, heads that share others' */
    {.size = {12, 12, 12, 64, 70}, .gate = GATE_FAST_DECAY, .place = UNITARY_HOUSEHOLDER},
    {.size = {12, 12, 4, 128, 256}, .gate = GATE_GLA},
    {.size = {16, 8, 16, 128, 128}, .gate = GATE_DELTA, .place = BEFORE_HALF},
    {.size = {16, 16, 16, 128, 128}, .gate = GATE_GATED_DELTA},
    {.size = {12, 12, 12, 64, 64}, .gate = GATE_RWKV7},
    {.size = {16, 16, 16, 128, 128}, .gate = GATE_KDA},
    {.size = {12, 6, 4, 64, 64},
     .map = FEATURE_EXP,
     .gate = GATE_REFINED,
     .place = PERMUTATION_HOUSEHOLDER,
     .texts = 23},
    {.size = {12, 12, 12, 64, 64}, .map = FEATURE_ELU_PLUS_1, .place = ENCODED_GATED},
    {.size = {12, 12, 12, 64, 64}, .map = FEATURE_RELU, .place = AFTER_HALF, .chunk = 2},
    /* so many features that 8 warps have no room for theirs in 99 KiB */
    {.size = {4, 4, 4, 3200, 16}, .map = FEATURE_RELU, .place = ENCODED_GATED, .outputs = 20},
    {.size = {12, 12, 12, 256, 64}, .map = FEATURE_EXP, .gate = GATE_REFINED},
    {.size = {12, 12, 12, 260, 16}, .map = FEATURE_RELU, .gate = GATE_REFINED},
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
        char *before = bench_without(without[i]);
        cuda[i] = bench_open_cuda(ACTIVATIONS_F32, limits);
        open_run(&runs[i], &cuda[i], &p, &host);
        run_together(&runs[i], i == 0 ? 2 : 1);
        expect_bits(count, &runs[0], &runs[i], without[i]);
        bench_restore("REGLA_CUDA_WITHOUT", before);
    }
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
    limits.max_head_dim = limits.max_features = 3200;
    limits.max_shared_state = 16 * ops_recurrent_bytes(64, true, 128);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        struct problem batch = batches[i];
        int filling = bench_filling_texts(batch.size.heads);
        batch.texts = batch.texts < filling ? filling : batch.texts;
        if (batch.texts > MOST_TEXTS)
            bench_fatal("MOST_TEXTS do not fill the device", NULL);
        check_switches(count, &batch, &limits);
    }
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
