/* Attention against its definition in float64: windows, biases, lengths around tiles and rings. */
#include "tests/unit/ops_bench.h"

enum { HEADS = 4, KV_HEADS = 2, MOST_TOKENS = 300, MOST_PAGES = 5 };

struct attention_case {
    int key_dim, value_dim, length;
    enum softmax_activation activation;
    enum window_kind window;
    int window_size;
    enum position_kind bias;
};

static const struct attention_case cases[] = {
    {8, 8, 1, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_NONE},
    {8, 12, 2, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_ALIBI},
    {16, 16, 63, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_LOG},
    {13, 40, 64, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_POWER},
    {16, 5, 65, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_3PARA_LOG},
    {32, 64, 300, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_BIAS_WHT},
    {16, 16, 200, SOFTMAX_ACT_RELU, WINDOW_FULL, 0, POSITION_NONE},
    {16, 16, 300, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_T5},
    {16, 16, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_BLOCK, 64, POSITION_NONE},
    {16, 24, 150, SOFTMAX_ACT_RELU, WINDOW_BLOCK, 8, POSITION_ALIBI},
    {16, 16, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_BLOCK, 100, POSITION_KERPLE_LOG},
    {16, 16, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 1, POSITION_NONE},
    {16, 16, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 9, POSITION_NONE},
    {16, 16, 300, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 64, POSITION_KERPLE_LOG},
    {12, 20, 300, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 130, POSITION_ALIBI},
    {12, 20, 300, SOFTMAX_ACT_RELU, WINDOW_SLIDING, 1000, POSITION_NONE},
};

/* Beyond a few keys these biases are -infinity in f32: whole tiles weigh nothing. */
static const struct attention_case steep_cases[] = {
    {8, 8, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_FULL, 0, POSITION_KERPLE_POWER},
    {8, 8, 200, SOFTMAX_ACT_SOFTMAX, WINDOW_SLIDING, 150, POSITION_KERPLE_BIAS_WHT},
};

static bool allowed(const struct attention_case *c, int t, int s)
{
    switch (c->window) {
    case WINDOW_FULL:
        return true;
    case WINDOW_BLOCK:
        return t / c->window_size == s / c->window_size;
    case WINDOW_SLIDING:
        return t - s < c->window_size;
    }
    return false;
}

static double score(const struct attention_case *c, const struct formula_bias *head, const float *q,
                    const float *k, int distance)
{
    double dot = 0.0, weight = 1.0, bias = 0.0, d = distance;
    for (int j = 0; j < c->key_dim; j++)
        dot += (double)q[j] * k[j];
    switch (c->bias) {
    case POSITION_ALIBI:
        bias = -head->r1 * d;
        break;
    case POSITION_KERPLE_LOG:
        bias = -head->r1 * log(1 + head->r2 * d);
        break;
    case POSITION_KERPLE_POWER:
        bias = -head->r1 * pow(d, head->r2);
        break;
    case POSITION_KERPLE_3PARA_LOG:
        bias = -head->r1 * log(1 + head->r2 * pow(d, head->r3));
        break;
    case POSITION_KERPLE_BIAS_WHT:
        weight = exp(-head->r3 * pow(d, head->r4));
        bias = -head->r1 * pow(d, head->r2);
        break;
    case POSITION_T5:
        bias = head->table[distance < FORMULA_T5_DISTANCES ? distance : FORMULA_T5_DISTANCES - 1];
        break;
    default:
        break;
    }
    return dot * 0.25 * weight + bias;
}

/* h of one head at position t; out [value_dim]. */
static void reference(const struct attention_case *c, const struct formula_bias *biases,
                      const float *q, const float *k, const float *v, int t, int head, double *out)
{
    int kv_head = head / (HEADS / KV_HEADS);
    double scores[MOST_TOKENS], most = -INFINITY, sum = 0.0;
    for (int s = 0; s <= t; s++) {
        scores[s] = !allowed(c, t, s) ? -INFINITY
                                      : score(c, &biases[head], q + (t * HEADS + head) * c->key_dim,
                                              k + (s * KV_HEADS + kv_head) * c->key_dim, t - s);
        most = fmax(most, scores[s]);
    }
    for (int s = 0; s <= t; s++) {
        scores[s] =
            c->activation == SOFTMAX_ACT_RELU ? fmax(scores[s], 0.0) : exp(scores[s] - most);
        sum += scores[s];
    }
    for (int i = 0; i < c->value_dim; i++) {
        out[i] = 0.0;
        for (int s = 0; s <= t; s++)
            out[i] += scores[s] * v[(s * KV_HEADS + kv_head) * c->value_dim + i];
        out[i] /= c->activation == SOFTMAX_ACT_RELU ? 1.0 : sum;
    }
}

static void run(struct backend *backend, const struct attention_case *c,
                const struct formula_bias *biases, float *q, float *k, float *v, float *h,
                int chunk)
{
    static struct bench_text text;
    size_t tile = ops_tile_bytes(c->key_dim, c->value_dim, KV_F32) * KV_HEADS;
    size_t tiles = c->window == WINDOW_FULL ? 1 : ((size_t)c->window_size + 63) / 64;
    char *slot = (char *)bench_nans(tiles * tile / sizeof(float)), *pages[MOST_PAGES];
    for (int i = 0; i < MOST_PAGES; i++)
        pages[i] = calloc(1, tile);
    for (int first = 0; first < c->length; first += chunk) {
        int n = c->length - first < chunk ? c->length - first : chunk;
        bench_text(&text, n, first, slot, pages);
        cpu_ops.begin(backend, &text.batch);
        cpu_ops.attention(backend,
                          &(struct ops_attention){
                              .num_heads = HEADS,
                              .num_kv_heads = KV_HEADS,
                              .key_dim = c->key_dim,
                              .value_dim = c->value_dim,
                              .scale = 0.25f,
                              .activation = c->activation,
                              .window = c->window,
                              .window_size = c->window_size,
                              .kv = KV_F32,
                              .bias = c->bias,
                              .biases = c->bias == POSITION_NONE ? NULL : biases,
                              .q = {q + first * HEADS * c->key_dim, HEADS * c->key_dim},
                              .k = {k + first * KV_HEADS * c->key_dim, KV_HEADS * c->key_dim},
                              .v = {v + first * KV_HEADS * c->value_dim, KV_HEADS * c->value_dim},
                              .h = {h + first * HEADS * c->value_dim, HEADS * c->value_dim}});
        cpu_ops.finish(backend, NULL, 0);
    }
    for (int i = 0; i < MOST_PAGES; i++)
        free(pages[i]);
    free(slot);
}

static void check_case(const struct attention_case *c, int number, bool steep)
{
    size_t n = (size_t)c->length;
    float *table = bench_floats(FORMULA_T5_DISTANCES, -1, 1, 9);
    struct formula_bias biases[HEADS];
    for (int h = 0; h < HEADS; h++)
        biases[h] =
            (struct formula_bias){0.1f * (float)(h + 1), 0.3f * (float)(h + 1), 0.2f, 0.7f, table};
    for (int h = 0; h < HEADS && steep; h++)
        biases[h] = (struct formula_bias){4.0f, 25.0f, 0.2f, 0.7f, table};
    float *q = bench_floats(n * HEADS * (size_t)c->key_dim, -2, 2, 1);
    float *k = bench_floats(n * KV_HEADS * (size_t)c->key_dim, -2, 2, 2);
    float *v = bench_floats(n * KV_HEADS * (size_t)c->value_dim, -1, 1, 3);
    size_t size = n * HEADS * (size_t)c->value_dim;
    float *h = bench_nans(size), *whole = malloc(size * sizeof(float));
    for (size_t set = 0; set < 3; set++) {
        struct backend *backend = bench_open(bench_sets[set], 3);
        if (backend == NULL)
            continue;
        run(backend, c, biases, q, k, v, h, c->length);
        for (int t = 0; t < c->length; t++)
            for (int head = 0; head < HEADS; head++) {
                double expected[64];
                reference(c, biases, q, k, v, t, head, expected);
                for (int i = 0; i < c->value_dim; i++) {
                    double got = h[(t * HEADS + head) * c->value_dim + i];
                    /* scores reach 20 in f32, so a weight has a relative error of 1e-6; ReLA sums
                     * up to 300 weights of that size without a divisor */
                    double bound = c->activation == SOFTMAX_ACT_RELU ? 3e-4 : 1e-5;
                    cr_assert(fabs(got - expected[i]) < bound,
                              "%s, case %d: position %d, head %d: expected %g, got %g",
                              bench_sets[set], number, t, head, expected[i], got);
                }
            }
        memcpy(whole, h, size * sizeof(float));
        for (int chunk = 1; chunk < c->length; chunk = chunk * 2 + 1) {
            memset(h, 0xff, size * sizeof(float));
            run(backend, c, biases, q, k, v, h, chunk);
            cr_assert(memcmp(whole, h, size * sizeof(float)) == 0, "%s, case %d: chunks of %d",
                      bench_sets[set], number, chunk);
        }
        cpu_ops.close(backend);
    }
    float *arrays[] = {table, q, k, v, h, whole};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

Test(attention, every_window_and_bias_follows_the_definition_in_any_chunks)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i], (int)i, false);
}

Test(attention, keys_too_far_to_weigh_leave_the_near_ones_as_they_are)
{
    for (size_t i = 0; i < sizeof steep_cases / sizeof *steep_cases; i++)
        check_case(&steep_cases[i], (int)i, true);
}
