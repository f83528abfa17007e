/* SPDX-License-Identifier: Apache-2.0 */
/* Models whose products are cuBLASLt's (--products cublaslt): golden cases with so many copies of
 * their prompt in a step that it has 128 rows and more, within the case's tolerance; decode steps
 * of 130 texts, from graphs too, beside the engine's own products; what the engine says of itself;
 * and libraries that cannot be used. */
#include "engine/engine.h"
#include "engine/ops/sampler.h"
#include "tests/cuda/bench.h"

#include <jansson.h>

enum { MOST_PROMPT = 80, MOST_ROWS = 512, FEWEST_ROWS = 128, TEXTS = 130, DECODES = 4 };

#ifdef REGLA_CUDA_EMULATION
extern long emulation_products(void); /* that have been asked for */
#endif

static struct bench_count count;

static void must(int result, const struct error *err)
{
    if (result != 0)
        bench_fatal("engine", err);
}

static int open_engine(struct engine **out, const char *model, enum weight_format weights,
                       enum activation_format activations, enum products products, int rows,
                       struct error *err)
{
    char folder[512];
    snprintf(folder, sizeof folder, REGLA_SOURCE_DIR "/tests/golden/%s", model);
    const struct engine_options options = {.device = "cuda",
                                           .weights = weights,
                                           .activations = activations,
                                           .products = products,
                                           .max_step_tokens = rows,
                                           .max_step_logits = rows,
                                           .poison = true,
                                           .state_memory_bytes = (size_t)64 << 20};
    return engine_open(out, folder, &options, err);
}

/* ---- golden cases ---- */

struct golden {
    json_t *json;
    int32_t prompt[MOST_PROMPT];
    int length;
    double tolerance;
};

static void read_golden(struct golden *golden, const char *model)
{
    char path[512];
    snprintf(path, sizeof path, REGLA_SOURCE_DIR "/tests/golden/%s/expected.json", model);
    golden->json = json_load_file(path, 0, NULL);
    const json_t *prompt = json_object_get(golden->json, "prompt");
    golden->length = (int)json_array_size(prompt);
    if (golden->length < 2 || golden->length > MOST_PROMPT)
        bench_fatal(path, NULL);
    for (int i = 0; i < golden->length; i++)
        golden->prompt[i] = (int32_t)json_integer_value(json_array_get(prompt, (size_t)i));
    golden->tolerance = json_number_value(json_object_get(golden->json, "tolerance"));
}

/* The largest distance of a prompt's log-probabilities from the expected ones. */
static double distance_of(const struct golden *golden, const struct span *span, int32_t vocab)
{
    const json_t *expected = json_object_get(golden->json, "prompt_logprobs");
    double worst = 0;
    for (int i = 0; i + 1 < golden->length; i++) {
        const float *logits = span->logits + (size_t)i * (size_t)vocab;
        double distance = fabs((double)logprob_of(logits, vocab, golden->prompt[i + 1]) -
                               json_number_value(json_array_get(expected, (size_t)i)));
        worst = distance <= worst ? worst : distance;
    }
    return worst;
}

static void check_golden(const char *model)
{
    struct error err = ERROR_INIT;
    struct golden golden;
    struct engine *engine;
    struct state *states[MOST_PROMPT];
    struct span spans[MOST_PROMPT];
    read_golden(&golden, model);
    int copies = 127 / golden.length + 1;
    must(open_engine(&engine, model, WEIGHTS_AUTO, ACTIVATIONS_F32, PRODUCTS_CUBLASLT, MOST_ROWS,
                     &err),
         &err);
    for (int i = 0; i < copies; i++) {
        must(state_create(&states[i], engine, golden.length, &err), &err);
        spans[i] = (struct span){.state = states[i],
                                 .tokens = golden.prompt,
                                 .num_tokens = golden.length,
                                 .num_logits = golden.length};
    }
#ifdef REGLA_CUDA_EMULATION
    long before = emulation_products();
#endif
    must(engine_step(engine, spans, copies, &err), &err);
#ifdef REGLA_CUDA_EMULATION
    bench_expect(&count, emulation_products() > before, model, "products are own", 0);
#endif
    for (int i = 0; i < copies; i++) {
        double distance = distance_of(&golden, &spans[i], engine_info(engine)->vocab_size);
        bench_expect(&count, distance <= golden.tolerance, model,
                     "is too far from what is expected", distance);
        state_free(states[i]);
    }
    engine_close(engine);
    json_decref(golden.json);
}

/* ---- decode steps ---- */

/* The logits of DECODES steps of all texts, [DECODES][TEXTS][vocab]. The caller frees them. */
static float *decode(enum weight_format weights, enum activation_format activations,
                     enum products products, size_t *numbers)
{
    struct error err = ERROR_INIT;
    struct engine *engine;
    struct state *states[TEXTS];
    struct span spans[TEXTS];
    int32_t tokens[TEXTS];
    must(open_engine(&engine, "regla_tied_glu_wide", weights, activations, products, MOST_ROWS,
                     &err),
         &err);
    size_t vocab = (size_t)engine_info(engine)->vocab_size;
    *numbers = DECODES * TEXTS * vocab;
    float *all = malloc(*numbers * sizeof *all), *out = all;
    for (int i = 0; i < TEXTS; i++)
        must(state_create(&states[i], engine, DECODES, &err), &err);
    for (int step = 0; step < DECODES; step++) {
        for (int i = 0; i < TEXTS; i++) {
            tokens[i] = (int32_t)((size_t)(7 * i + step) % vocab);
            spans[i] = (struct span){
                .state = states[i], .tokens = &tokens[i], .num_tokens = 1, .num_logits = 1};
        }
        must(engine_step(engine, spans, TEXTS, &err), &err);
        for (int i = 0; i < TEXTS; i++, out += vocab)
            memcpy(out, spans[i].logits, vocab * sizeof *out);
    }
    for (int i = 0; i < TEXTS; i++)
        state_free(states[i]);
    engine_close(engine);
    return all;
}

/* Both multiply the same numbers: only the order of sums is another. With rounded activations a
 * sum's last bit may round an input of the next product to its neighbour, 2^-8 away. */
static void check_decode(enum weight_format weights, enum activation_format activations)
{
    size_t numbers;
    float *own = decode(weights, activations, PRODUCTS_OWN, &numbers);
    float *other = decode(weights, activations, PRODUCTS_CUBLASLT, &numbers);
    double distance = bench_distance(other, own, numbers);
    bench_expect(&count, distance < (activations == ACTIVATIONS_16BIT ? 1e-3 : 1e-5),
                 weight_format_name(weights), "decode steps are too far from those of own products",
                 distance);
    bench_expect(&count, memcmp(own, other, numbers * sizeof *own) != 0,
                 weight_format_name(weights), "decode steps are own", 0);
    free(own);
    free(other);
}

/* ---- what it says ---- */

/* The copy of the weights is as large as they are, but for heads' matrices and padding. The
 * library's workspace lies in what the own kernels take for partial results, as far as that is
 * enough. With as few rows as the library takes, none of them for tiles, that is less than 1 MiB
 * however many multiprocessors there are. */
static void check_info(void)
{
    struct error err = ERROR_INIT;
    struct engine *engine;
    size_t workspace[2];
    char *before = bench_set("REGLA_CUDA_STREAMED_ROWS", "128");
    for (int products = PRODUCTS_OWN; products <= PRODUCTS_CUBLASLT; products++) {
        must(open_engine(&engine, "gla_fla", WEIGHTS_BF16, ACTIVATIONS_F32, (enum products)products,
                         FEWEST_ROWS, &err),
             &err);
        const struct engine_info *info = engine_info(engine);
        workspace[products] = info->workspace_bytes - info->second_bytes;
        bool other = products == PRODUCTS_CUBLASLT;
        bench_expect(&count, info->products == (enum products)products, "info", "other products",
                     (double)info->products);
        bench_expect(&count, (strstr(info->instruction_set, ", cublasLt ") != NULL) == other,
                     "info", info->instruction_set, 0);
        bench_expect(&count,
                     info->second_bytes <= info->weights_bytes &&
                         info->second_bytes >= (other ? info->weights_bytes / 2 : 0) &&
                         (other || info->second_bytes == 0),
                     "info", "bytes of the second copy", (double)info->second_bytes);
        engine_close(engine);
    }
    bench_restore("REGLA_CUDA_STREAMED_ROWS", before);
    double more = (double)workspace[1] - (double)workspace[0];
    bench_expect(&count, more > 31 << 20 && more < 33 << 20, "info",
                 "more workspace with the library than without, expected its 32 MiB", more);
}

/* library NULL: the one that the environment names, or that is found, may be used. */
static void check_refused(const char *library, enum weight_format weights, const char *words)
{
    struct error err = ERROR_INIT;
    struct engine *engine;
    char *before =
        bench_set("REGLA_CUDA_CUBLASLT", library != NULL ? library : getenv("REGLA_CUDA_CUBLASLT"));
    int result = open_engine(&engine, "gla_fla", weights, ACTIVATIONS_F32, PRODUCTS_CUBLASLT,
                             MOST_ROWS, &err);
    bench_expect(&count, result == -1 && strstr(err.message, words) != NULL, words, err.message,
                 result);
    if (result == 0)
        engine_close(engine);
    bench_restore("REGLA_CUDA_CUBLASLT", before);
}

/* The library of the toolkit, if it is here, has all functions; without a driver it opens nothing.
 */
static void check_real(void)
{
#ifdef REGLA_CUDA_EMULATION
    static const char path[] = "/usr/local/cuda/lib64/libcublasLt.so.13";
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        printf("cublaslt: skipped: no %s\n", path);
        return;
    }
    fclose(file);
    check_refused(path, WEIGHTS_BF16, "cublasLtCreate: CUBLAS_STATUS_");
#endif
}

int main(void)
{
    static const char *const models[] = {"gpt_neox_tf4", "gla_fla_kv_heads_default_mlp",
                                         "regla_small_eps_bf16"};
    const struct cuda_options options = {.device = 0, .products = PRODUCTS_CUBLASLT};
    struct error err = ERROR_INIT;
    struct backend *backend;
    if (cuda_devices() == 0) {
        printf("cublaslt: skipped: no CUDA device\n");
        return BENCH_NO_DEVICE;
    }
    check_refused("/no/where/libcublasLt.so", WEIGHTS_F16, "got /no/where/libcublasLt.so: ");
    check_refused("libm.so.6", WEIGHTS_F16, "libm.so.6 has no function cublasLt");
    check_refused(NULL, WEIGHTS_Q8, "cublaslt goes with weights in bf16 or f16, these are in q8");
    check_refused(NULL, WEIGHTS_F32, "cublaslt goes with weights in bf16 or f16, these are in f32");
    check_real();
    if (cuda_open(&backend, &options, &err) != 0) {
        if (!bench_lacks_cublaslt(&err))
            bench_fatal("cublaslt", &err);
        printf("cublaslt: the others are skipped: %s\n", err.message);
        printf("cublaslt: %d passed, %d failed\n", count.passed, count.failed);
        return count.failed > 0;
    }
    cuda_ops()->close(backend);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        check_golden(models[i]);
    check_decode(WEIGHTS_BF16, ACTIVATIONS_F32);
    check_decode(WEIGHTS_BF16, ACTIVATIONS_16BIT);
    check_decode(WEIGHTS_F16, ACTIVATIONS_F32);
    check_info();
    printf("cublaslt: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed > 0;
}
