/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on a device: near the CPU's for every window, bias and format; the same bits however
 * texts are cut into steps and whatever runs beside them; K and V lie where the CPU puts them; and
 * nothing comes from keys that a query may not see. */
#include "engine/ops/perform.h"
#include "tests/cuda/bench.h"

enum { TEXTS = 3, MOST_ROWS = 704, OFFSET = 128 };

struct attention_case {
    int heads, kv_heads, key_dim, value_dim;
    enum softmax_activation activation;
    enum window_kind window;
    int window_size;
    enum position_kind bias;
    enum kv_format kv;
    float softcap;
};

struct text {
    int length;
    float *q, *k, *v, *h;      /* of all positions, on the host */
    char *slot, **pages;       /* on the device */
    int num_pages, chunk, row; /* tokens a step; of the step: its first row */
    int64_t position;
};

/* What a step works on, on the device, [MOST_ROWS] rows each. */
struct buffers {
    float *q, *k, *v, *h;
    struct formula_bias *biases;
    float *table;
};

static struct bench_device cpu, cuda;
static struct bench_count count;
static bool in_keys; /* the values of the cases that run are in their keys */

static size_t tile_bytes(const struct attention_case *c)
{
    return ops_tile_bytes(c->key_dim, in_keys ? 0 : c->value_dim, c->kv) * (size_t)c->kv_heads;
}

static size_t slot_bytes(const struct attention_case *c)
{
    size_t tiles = c->window == WINDOW_FULL ? 0 : ((size_t)c->window_size + 63) / 64;
    return OFFSET + tiles * tile_bytes(c);
}

static void describe(const struct attention_case *c, char *name, size_t size)
{
    snprintf(
        name, size,
        "heads %d/%d, dims %d %d%s, activation %d, window %d of %d, bias %d, kv %s, softcap %g",
        c->heads, c->kv_heads, c->key_dim, c->value_dim, in_keys ? " in keys" : "",
        (int)c->activation, (int)c->window, c->window_size, (int)c->bias, kv_format_name(c->kv),
        (double)c->softcap);
}

/* ---- texts ---- */

static void open_texts(const struct attention_case *c, struct text *texts, const int *lengths)
{
    for (int i = 0; i < TEXTS; i++) {
        struct text *text = &texts[i];
        size_t n = (size_t)lengths[i];
        uint32_t seed = (uint32_t)i * 8;
        *text = (struct text){.length = lengths[i], .num_pages = lengths[i] / 64 + 1};
        text->q = bench_floats(n * (size_t)(c->heads * c->key_dim), -2, 2, seed);
        text->k = bench_floats(n * (size_t)(c->kv_heads * c->key_dim), -2, 2, seed + 1);
        text->v = bench_floats(n * (size_t)(c->kv_heads * c->value_dim), -1, 1, seed + 2);
        text->h = malloc(n * (size_t)(c->heads * c->value_dim) * sizeof(float));
        text->pages = malloc((size_t)text->num_pages * sizeof *text->pages);
    }
}

static void close_texts(struct text *texts)
{
    for (int i = 0; i < TEXTS; i++) {
        float *arrays[] = {texts[i].q, texts[i].k, texts[i].v, texts[i].h};
        for (int j = 0; j < 4; j++)
            free(arrays[j]);
        free(texts[i].pages);
    }
}

/* Memory for the texts' keys, full of `fill`. */
static void open_memory(const struct bench_device *device, const struct attention_case *c,
                        struct text *texts, float fill)
{
    for (int i = 0; i < TEXTS; i++) {
        texts[i].position = 0;
        texts[i].slot = bench_memory(device, slot_bytes(c), NULL);
        device->ops->fill(device->backend, texts[i].slot, fill, slot_bytes(c) / sizeof(float));
        for (int p = 0; p < texts[i].num_pages && c->window == WINDOW_FULL; p++) {
            texts[i].pages[p] = bench_memory(device, OFFSET + tile_bytes(c), NULL);
            device->ops->fill(device->backend, texts[i].pages[p], fill,
                              (OFFSET + tile_bytes(c)) / sizeof(float));
        }
    }
}

static void close_memory(const struct bench_device *device, const struct attention_case *c,
                         struct text *texts)
{
    for (int i = 0; i < TEXTS; i++) {
        bench_free(device, texts[i].slot, slot_bytes(c));
        for (int p = 0; p < texts[i].num_pages && c->window == WINDOW_FULL; p++)
            bench_free(device, texts[i].pages[p], OFFSET + tile_bytes(c));
    }
}

static void open_buffers(const struct bench_device *device, const struct attention_case *c,
                         struct buffers *b)
{
    size_t row = MOST_ROWS * sizeof(float);
    b->q = bench_memory(device, row * (size_t)(c->heads * c->key_dim), NULL);
    b->k = bench_memory(device, row * (size_t)(c->kv_heads * c->key_dim), NULL);
    b->v = bench_memory(device, row * (size_t)(c->kv_heads * c->value_dim), NULL);
    b->h = bench_memory(device, row * (size_t)(c->heads * c->value_dim), NULL);
    float *table = bench_floats(FORMULA_T5_DISTANCES, -1, 1, 99);
    b->table = bench_memory(device, FORMULA_T5_DISTANCES * sizeof(float), table);
    free(table);
    struct formula_bias biases[64];
    for (int h = 0; h < c->heads; h++)
        biases[h] = (struct formula_bias){
            0.1f * (float)(h + 1), 0.3f * (float)(h + 1), 0.2f, 0.7f, b->table,
            FORMULA_T5_DISTANCES};
    b->biases = bench_memory(device, (size_t)c->heads * sizeof *biases, biases);
}

static void close_buffers(const struct bench_device *device, const struct attention_case *c,
                          struct buffers *b)
{
    size_t row = MOST_ROWS * sizeof(float);
    bench_free(device, b->q, row * (size_t)(c->heads * c->key_dim));
    bench_free(device, b->k, row * (size_t)(c->kv_heads * c->key_dim));
    bench_free(device, b->v, row * (size_t)(c->kv_heads * c->value_dim));
    bench_free(device, b->h, row * (size_t)(c->heads * c->value_dim));
    bench_free(device, b->table, FORMULA_T5_DISTANCES * sizeof(float));
    bench_free(device, b->biases, (size_t)c->heads * sizeof *b->biases);
}

/* ---- steps ---- */

/* Rows [row, row + n) of a device's array from, or to, the text's positions from `position` on. */
static void move_rows(const struct bench_device *device, float *rows, int row, float *all,
                      int64_t position, int n, int width, bool in)
{
    float *there = rows + (int64_t)row * width, *here = all + position * width;
    size_t bytes = (size_t)n * (size_t)width * sizeof(float);
    if (in)
        device->ops->copy_in(device->backend, there, here, bytes);
    else
        device->ops->copy_out(device->backend, here, there, bytes);
}

static void move_text(const struct bench_device *device, const struct attention_case *c,
                      struct buffers *b, struct text *text, int n, bool in)
{
    if (!in) {
        move_rows(device, b->h, text->row, text->h, text->position, n, c->heads * c->value_dim,
                  false);
        return;
    }
    move_rows(device, b->q, text->row, text->q, text->position, n, c->heads * c->key_dim, true);
    move_rows(device, b->k, text->row, text->k, text->position, n, c->kv_heads * c->key_dim, true);
    move_rows(device, b->v, text->row, text->v, text->position, n, c->kv_heads * c->value_dim,
              true);
}

static void call(const struct bench_device *device, const struct attention_case *c,
                 const struct buffers *b)
{
    int keys = c->kv_heads * c->key_dim, values = c->kv_heads * c->value_dim;
    perform_attention(device->ops, device->backend,
                      &(struct ops_attention){
                          .num_heads = c->heads,
                          .num_kv_heads = c->kv_heads,
                          .key_dim = c->key_dim,
                          .value_dim = c->value_dim,
                          .values_in_keys = in_keys,
                          .scale = (float)(1.0 / sqrt(c->key_dim)),
                          .softcap = c->softcap,
                          .activation = c->activation,
                          .window = c->window,
                          .window_size = c->window_size,
                          .kv = c->kv,
                          .bias = c->bias,
                          .biases = c->bias == POSITION_NONE ? NULL : b->biases,
                          .q = {b->q, c->heads * c->key_dim},
                          .k = {b->k, keys},
                          .v = {in_keys ? NULL : b->v, values},
                          .h = {b->h, c->heads * c->value_dim},
                          .offset = OFFSET,
                      });
}

/* One step: of each text up to its chunk; whether there was anything left. */
static bool step(const struct bench_device *device, const struct attention_case *c,
                 struct buffers *b, struct text *texts)
{
    int32_t tokens[MOST_ROWS] = {0};
    int64_t positions[MOST_ROWS];
    struct batch_span spans[TEXTS];
    /* without logits, so that the device does not take it for a step it has a graph of */
    struct batch batch = {.tokens = tokens, .positions = positions, .spans = spans};
    int n[TEXTS];
    for (int i = 0; i < TEXTS; i++) {
        int64_t left = texts[i].length - texts[i].position;
        n[i] = left < texts[i].chunk ? (int)left : texts[i].chunk;
        texts[i].row = batch.num_rows;
        if (n[i] == 0)
            continue;
        spans[batch.num_spans++] = (struct batch_span){.first_row = batch.num_rows,
                                                       .num_rows = n[i],
                                                       .position = texts[i].position,
                                                       .slot = texts[i].slot,
                                                       .pages = texts[i].pages,
                                                       .num_pages = texts[i].num_pages};
        for (int j = 0; j < n[i]; j++)
            positions[batch.num_rows++] = texts[i].position + j;
        move_text(device, c, b, &texts[i], n[i], true);
    }
    if (batch.num_rows == 0)
        return false;
    device->ops->begin(device->backend, &batch);
    call(device, c, b);
    device->ops->send(device->backend, NULL, 0);
    device->ops->receive(device->backend);
    for (int i = 0; i < TEXTS; i++) {
        if (n[i] > 0)
            move_text(device, c, b, &texts[i], n[i], false);
        texts[i].position += n[i];
    }
    return true;
}

/* All texts, chunks[i] tokens of text i a step. */
static void run(const struct bench_device *device, const struct attention_case *c,
                struct text *texts, const int *chunks)
{
    struct buffers buffers;
    open_buffers(device, c, &buffers);
    for (int i = 0; i < TEXTS; i++)
        texts[i].chunk = chunks[i];
    while (step(device, c, &buffers, texts))
        ;
    bench_check_status(device);
    close_buffers(device, c, &buffers);
}

static size_t h_floats(const struct attention_case *c, const struct text *text)
{
    return (size_t)text->length * (size_t)(c->heads * c->value_dim);
}

static float *copy_h(const struct attention_case *c, const struct text *text)
{
    size_t bytes = h_floats(c, text) * sizeof(float);
    return memcpy(malloc(bytes), text->h, bytes);
}

/* The bytes that all texts keep, one after the other. */
static char *copy_memory(const struct bench_device *device, const struct attention_case *c,
                         const struct text *texts, size_t *size)
{
    size_t page = OFFSET + tile_bytes(c), at = 0;
    *size = 0;
    for (int i = 0; i < TEXTS; i++)
        *size += c->window == WINDOW_FULL ? (size_t)texts[i].num_pages * page : slot_bytes(c);
    char *all = malloc(*size);
    for (int i = 0; i < TEXTS; i++) {
        if (c->window != WINDOW_FULL) {
            device->ops->copy_out(device->backend, all + at, texts[i].slot, slot_bytes(c));
            at += slot_bytes(c);
        }
        for (int p = 0; p < texts[i].num_pages && c->window == WINDOW_FULL; p++, at += page)
            device->ops->copy_out(device->backend, all + at, texts[i].pages[p], page);
    }
    return all;
}

/* ---- tests ---- */

/* Scores reach some 20 in f32, so a weight has a relative error of about 1e-6, and values are as
 * large as their mean is not: in the norm of a text's h that is below 1e-5. */
static void check_case(struct attention_case c, const int *lengths)
{
    static const int chunks[][TEXTS] = {
        {7, 6, 64}, {63, 1, 2}, {65, 64, 1}, {130, 9, 8}, {1, 2, 3}};
    char name[200];
    describe(&c, name, sizeof name);
    struct text texts[TEXTS];
    open_texts(&c, texts, lengths);
    float *expected[TEXTS], *whole[TEXTS];
    size_t bytes[2];
    open_memory(&cpu, &c, texts, 0.0f);
    run(&cpu, &c, texts, lengths);
    char *memory = copy_memory(&cpu, &c, texts, &bytes[0]);
    close_memory(&cpu, &c, texts);
    for (int i = 0; i < TEXTS; i++)
        expected[i] = copy_h(&c, &texts[i]);
    open_memory(&cuda, &c, texts, 0.0f);
    run(&cuda, &c, texts, lengths);
    char *got = copy_memory(&cuda, &c, texts, &bytes[1]);
    close_memory(&cuda, &c, texts);
    bench_expect(&count, bytes[0] == bytes[1] && memcmp(memory, got, bytes[0]) == 0, name,
                 "keys lie as on the CPU", 0);
    free(memory);
    free(got);
    for (int i = 0; i < TEXTS; i++) {
        double distance = bench_distance(texts[i].h, expected[i], h_floats(&c, &texts[i]));
        bench_expect(&count, distance < 1e-5, name, "distance from the CPU", distance);
        whole[i] = copy_h(&c, &texts[i]);
    }
    /* token by token through several splits only where that does not take long */
    size_t num_chunks = sizeof chunks / sizeof *chunks - (c.key_dim + c.value_dim > 32);
    for (size_t n = 0; n < num_chunks; n++) {
        open_memory(&cuda, &c, texts, NAN); /* what another text left */
        run(&cuda, &c, texts, chunks[n]);
        close_memory(&cuda, &c, texts);
        for (int i = 0; i < TEXTS; i++)
            bench_expect(&count,
                         memcmp(texts[i].h, whole[i], h_floats(&c, &texts[i]) * sizeof(float)) == 0,
                         name, "the same bits in chunks of", chunks[n][i]);
    }
    for (int i = 0; i < TEXTS; i++) {
        free(expected[i]);
        free(whole[i]);
    }
    close_texts(texts);
}

static bool sees(const struct attention_case *c, int t, int s)
{
    if (c->window == WINDOW_BLOCK)
        return s <= t && t / c->window_size == s / c->window_size;
    return s <= t && (c->window == WINDOW_FULL || t - s < c->window_size);
}

/* Key and value 40 become `bad`: it shows where it is seen and nowhere else. */
static void check_hidden(struct attention_case c, float bad)
{
    enum { BAD = 40, LENGTH = 150 };
    static const int lengths[TEXTS] = {LENGTH, 1, 1};
    static const int chunks[][TEXTS] = {{150, 1, 1}, {33, 1, 1}, {5, 1, 1}, {1, 1, 1}};
    char name[200];
    describe(&c, name, sizeof name);
    struct text texts[TEXTS];
    open_texts(&c, texts, lengths);
    open_memory(&cuda, &c, texts, NAN);
    run(&cuda, &c, texts, chunks[0]);
    close_memory(&cuda, &c, texts);
    float *clean = copy_h(&c, &texts[0]);
    for (int i = 0; i < c.kv_heads * c.key_dim; i++)
        texts[0].k[BAD * c.kv_heads * c.key_dim + i] = bad;
    for (int i = 0; i < c.kv_heads * c.value_dim; i++)
        texts[0].v[BAD * c.kv_heads * c.value_dim + i] = bad;
    size_t row = (size_t)(c.heads * c.value_dim);
    for (size_t n = 0; n < sizeof chunks / sizeof *chunks; n++) {
        open_memory(&cuda, &c, texts, NAN);
        run(&cuda, &c, texts, chunks[n]);
        close_memory(&cuda, &c, texts);
        int shown = 0;
        for (int t = 0; t < LENGTH; t++)
            shown +=
                !sees(&c, t, BAD) && memcmp(clean + (size_t)t * row, texts[0].h + (size_t)t * row,
                                            row * sizeof(float)) != 0;
        bench_expect(&count, shown == 0, name, "rows where a hidden key shows", shown);
        bench_expect(&count, c.activation == SOFTMAX_ACT_RELU || !isfinite(texts[0].h[BAD * row]),
                     name, "a seen key shows", (double)bad);
    }
    free(clean);
    close_texts(texts);
}

/* Values in keys have the bits of the same values by themselves. */
static void check_in_keys(struct attention_case c, const int *lengths)
{
    char name[200];
    describe(&c, name, sizeof name);
    struct text texts[TEXTS];
    float *apart[TEXTS];
    open_texts(&c, texts, lengths);
    for (int i = 0; i < TEXTS; i++)
        for (int row = 0; row < texts[i].length * c.kv_heads; row++)
            memcpy(texts[i].v + row * c.value_dim, texts[i].k + row * c.key_dim,
                   (size_t)c.value_dim * sizeof(float));
    for (int run_in_keys = 0; run_in_keys < 2; run_in_keys++) {
        in_keys = run_in_keys;
        open_memory(&cuda, &c, texts, NAN);
        run(&cuda, &c, texts, lengths);
        close_memory(&cuda, &c, texts);
        for (int i = 0; i < TEXTS; i++) {
            const size_t bytes = h_floats(&c, &texts[i]) * sizeof(float);
            if (!in_keys)
                apart[i] = copy_h(&c, &texts[i]);
            else
                bench_expect(&count, memcmp(texts[i].h, apart[i], bytes) == 0, name,
                             "the bits of values by themselves, text", i);
        }
    }
    for (int i = 0; i < TEXTS; i++)
        free(apart[i]);
    close_texts(texts);
}

/* Far positions, where splits are longer: texts that begin with random pages. */
static void check_far(struct attention_case c, int64_t position)
{
    enum { LENGTH = 12 };
    static const int lengths[TEXTS] = {LENGTH, 1, 1};
    static const int chunks[][TEXTS] = {{LENGTH, 1, 1}, {1, 1, 1}, {9, 1, 1}};
    char name[200];
    describe(&c, name, sizeof name);
    struct text texts[TEXTS];
    int there[TEXTS] = {(int)position + LENGTH, 1, 1};
    open_texts(&c, texts, there);
    size_t page = OFFSET + tile_bytes(&c), width = (size_t)(c.heads * c.value_dim);
    float *whole = NULL, *random = bench_floats(page / sizeof(float), -1, 1, 5);
    const struct bench_device *devices[] = {&cpu, &cuda, &cuda, &cuda};
    for (int n = 0; n < 4; n++) {
        open_memory(devices[n], &c, texts, 0.0f);
        for (int p = 0; p < texts[0].num_pages; p++)
            devices[n]->ops->copy_in(devices[n]->backend, texts[0].pages[p], random, page);
        texts[0].position = position;
        run(devices[n], &c, texts, n == 0 ? lengths : chunks[n - 1]);
        close_memory(devices[n], &c, texts);
        float *h = texts[0].h + (size_t)position * width;
        if (n == 1) {
            double distance = bench_distance(h, whole, LENGTH * width);
            bench_expect(&count, distance < 1e-5, name, "distance from the CPU, far", distance);
        } else if (n > 1) {
            bench_expect(&count, memcmp(h, whole, LENGTH * width * sizeof(float)) == 0, name,
                         "the same bits, far, in chunks of", chunks[n - 1][0]);
        }
        if (n < 2) {
            free(whole);
            whole =
                memcpy(malloc(LENGTH * width * sizeof(float)), h, LENGTH * width * sizeof(float));
        }
    }
    free(whole);
    free(random);
    close_texts(texts);
}

/* One text decodes far on, beside one that is met in longer spans and one in spans of a few rows:
 * the same bits as in one step. */
static void check_mixed(struct attention_case c)
{
    enum { BEGUN = 520 }; /* of the text that decodes: met before */
    static const int lengths[TEXTS] = {BEGUN + 9, 130, 40}, chunks[TEXTS] = {1, 17, 5};
    static const int alone[TEXTS] = {MOST_ROWS, 0, 0};
    char name[200];
    describe(&c, name, sizeof name);
    struct text texts[TEXTS];
    float *whole[TEXTS];
    open_texts(&c, texts, lengths);
    open_memory(&cuda, &c, texts, NAN);
    run(&cuda, &c, texts, lengths);
    close_memory(&cuda, &c, texts);
    for (int i = 0; i < TEXTS; i++)
        whole[i] = copy_h(&c, &texts[i]);
    open_memory(&cuda, &c, texts, NAN);
    texts[0].length = BEGUN;
    run(&cuda, &c, texts, alone);
    texts[0].length = lengths[0];
    run(&cuda, &c, texts, chunks);
    close_memory(&cuda, &c, texts);
    for (int i = 0; i < TEXTS; i++) {
        bench_expect(&count,
                     memcmp(texts[i].h, whole[i], h_floats(&c, &texts[i]) * sizeof(float)) == 0,
                     name, "the same bits in mixed steps, text", i);
        free(whole[i]);
    }
    close_texts(texts);
}

static const struct attention_case cases[] = {
    {4, 2, 8, 8, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, KV_F32, 0},
    {4, 4, 8, 12, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_ALIBI, KV_F16, 0},
    {3, 1, 13, 40, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_POWER, KV_BF16, 0},
    {2, 1, 16, 5, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_3PARA_LOG, KV_F32, 0},
    {5, 1, 64, 64, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_BIAS_WHT, KV_BF16, 0},
    {2, 2, 80, 128, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_T5, KV_F16, 0},
    {9, 1, 33, 65, SOFTMAX_ACT_RELU, WINDOW_FULL, 0, POSITION_NONE, KV_F16, 0},
    {2, 2, 36, 200, SOFTMAX_ACT_RELU, WINDOW_FULL, 0, POSITION_KERPLE_LOG, KV_F32, 0},
    {2, 1, 520, 16, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, KV_F16, 0},
    /* queries of several tokens do not fit the shared memory of every device */
    {2, 1, 256, 16, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, KV_F32, 0},
    {2, 2, 8, 300, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_ALIBI, KV_F32, 0},
    {4, 2, 16, 16, SOFTMAX_ACT_SOFTMAX, WINDOW_BLOCK, 64, POSITION_NONE, KV_F32, 0},
    {4, 2, 16, 24, SOFTMAX_ACT_RELU, WINDOW_BLOCK, 8, POSITION_ALIBI, KV_F32, 0},
    {4, 2, 16, 16, SOFTMAX_ACT_SOFTMAX, WINDOW_BLOCK, 100, POSITION_KERPLE_LOG, KV_F32, 0},
    {2, 2, 16, 16, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 1, POSITION_NONE, KV_F32, 0},
    {3, 1, 16, 16, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 9, POSITION_T5, KV_F32, 0},
    {4, 2, 64, 64, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 64, POSITION_KERPLE_LOG, KV_F32, 0},
    {2, 2, 12, 130, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 130, POSITION_ALIBI, KV_F32, 0},
    {9, 1, 12, 20, SOFTMAX_ACT_RELU, WINDOW_SLIDING, 1000, POSITION_NONE, KV_F32, 0},
    {4, 2, 16, 24, SOFTMAX_ACT_RELU2, WINDOW_BLOCK, 70, POSITION_T5, KV_F32, 0},
    {2, 1, 8, 300, SOFTMAX_ACT_RELU2, WINDOW_FULL, 0, POSITION_NONE, KV_F16, 0},
    {2, 1, 520, 20, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 50, POSITION_NONE, KV_F32, 0},
    /* rings that end within a tile, of widths that leave part of a round */
    {8, 1, 13, 7, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 333, POSITION_ALIBI, KV_F32, 0},
    {2, 2, 35, 33, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 75, POSITION_NONE, KV_F32, 0},
    {2, 1, 35, 18, SOFTMAX_ACT_SOFTMAX, WINDOW_BLOCK, 77, POSITION_NONE, KV_F32, 0},
    /* scores that the cap bends: q.k / sqrt(d) reaches some 5 */
    {4, 2, 16, 16, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_BIAS_WHT, KV_F32, 3.0f},
    {2, 1, 256, 256, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, KV_BF16, 2.0f},
    {4, 2, 16, 16, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 70, POSITION_NONE, KV_F32, 1.0f},
    {2, 1, 256, 256, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 100, POSITION_ALIBI, KV_F32, 2.0f},
};

/* Full windows, a ring that several splits see, and one that one or two do. */
static const struct attention_case mixed[] = {
    {4, 2, 8, 8, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_ALIBI, KV_F16, 0},
    {3, 3, 37, 40, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, KV_BF16, 2.0f},
    {2, 1, 12, 16, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 450, POSITION_NONE, KV_F32, 0},
    {2, 2, 16, 12, SOFTMAX_ACT_RELU, WINDOW_BLOCK, 100, POSITION_NONE, KV_F32, 0},
};

static const struct attention_case cases_in_keys[] = {
    {4, 4, 8, 8, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, KV_F32, 0},
    {4, 1, 24, 10, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_ALIBI, KV_F16, 0},
    {6, 2, 13, 13, SOFTMAX_ACT_RELU, WINDOW_FULL, 0, POSITION_NONE, KV_BF16, 0},
    {9, 1, 80, 65, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, KV_BF16, 2.0f},
    {2, 2, 36, 1, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, KV_F32, 0},
    {3, 1, 130, 128, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE, KV_F16, 0},
};

static void check_values_in_keys(const int *lengths, const int *longer)
{
    in_keys = true;
    for (size_t i = 0; i < sizeof cases_in_keys / sizeof *cases_in_keys; i++) {
        check_case(cases_in_keys[i], i == 1 ? longer : lengths);
        check_hidden(cases_in_keys[i], i % 2 == 0 ? NAN : INFINITY);
        check_in_keys(cases_in_keys[i], lengths);
    }
    check_mixed(cases_in_keys[1]);
    in_keys = false;
}

int main(void)
{
    static const int lengths[TEXTS] = {290, 130, 65}, longer[TEXTS] = {600, 63, 2};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct ops_limits limits = bench_limits(MOST_ROWS);
    limits.max_key_dim = 520;
    limits.max_softmax_value_dim = limits.max_value_dim_in_keys = 300;
    bench_open(&cpu, &cuda, &limits);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool small = cases[i].key_dim <= 16 && cases[i].value_dim <= 16;
        if (!small)
            check_case(cases[i], lengths);
        else
            check_case(cases[i], i % 2 == 0 ? lengths : longer);
        if (small || cases[i].window != WINDOW_FULL)
            check_hidden(cases[i], bad[i % 3]);
    }
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++)
        check_mixed(mixed[i]);
    check_values_in_keys(lengths, longer);
    /* where splits become longer: 62 times 4 tiles */
    check_far((struct attention_case){2, 1, 4, 4, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0,
                                      POSITION_ALIBI, KV_F32, 0},
              62 * 4 * 64 - 6);
    cpu.ops->close(cpu.backend);
    cuda.ops->close(cuda.backend);
    printf("attention: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed > 0;
}
