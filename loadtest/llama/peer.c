/* SPDX-License-Identifier: Apache-2.0 */
#include "loadtest/llama/peer.h"

#include "lib/base/clock.h"

#include <string.h>

#ifndef PEER_IK
#include <ggml-cpu.h>
#endif

static void quiet(enum ggml_log_level level, const char *text, void *context)
{
    (void)context;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

#ifdef PEER_IK /* ik_llama.cpp: what it calls otherwise, and its own way to load */

static int set_load(struct llama_model_params *params, int load, struct error *err)
{
    (void)err;
    params->use_mmap = load == PEER_AS_IT_LIKES || load == PEER_MAP;
    params->repack_tensors = load == PEER_REPACK;
    return 0;
}

static void set_flash(struct llama_context_params *params, int flash)
{
    if (flash != PEER_AS_IT_LIKES)
        params->flash_attn = flash != 0;
}

/* It has no f32 values, and no attention to f32 keys. */
static enum ggml_type kv_type(enum kv_format format)
{
    return format == KV_BF16 ? GGML_TYPE_BF16 : GGML_TYPE_F16;
}

static bool cut_text(struct peer *peer, int text, int depth)
{
    return llama_kv_cache_seq_rm(peer->context, text, depth, -1);
}

static void free_model(struct llama_model *model)
{
    llama_free_model(model);
}

/* It has OpenMP's alone. */
static int open_threads(struct peer *peer, int threads, struct error *err)
{
    (void)peer, (void)threads, (void)err;
    return 0;
}

static void close_threads(struct peer *peer)
{
    (void)peer;
}

#else

static int set_load(struct llama_model_params *params, int load, struct error *err)
{
    if (load == PEER_REPACK)
        return error_set(err, ERROR_INVALID, "load: only ik_llama.cpp repacks when asked to");
    params->load_mode = load;
    return 0;
}

static void set_flash(struct llama_context_params *params, int flash)
{
    params->flash_attn_type = flash;
}

static enum ggml_type kv_type(enum kv_format format)
{
    return format == KV_F32 ? GGML_TYPE_F32 : format == KV_BF16 ? GGML_TYPE_BF16 : GGML_TYPE_F16;
}

static bool cut_text(struct peer *peer, int text, int depth)
{
    return llama_memory_seq_rm(llama_get_memory(peer->context), text, depth, -1);
}

static void free_model(struct llama_model *model)
{
    llama_model_free(model);
}

static int open_threads(struct peer *peer, int threads, struct error *err)
{
    struct ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    peer->threads = ggml_threadpool_new(&params);
    if (peer->threads == NULL)
        return error_set(err, ERROR_INTERNAL, "llama.cpp made no threads");
    llama_attach_threadpool(peer->context, peer->threads, NULL);
    return 0;
}

static void close_threads(struct peer *peer)
{
    if (peer->threads != NULL)
        ggml_threadpool_free(peer->threads);
}

#endif

static int open_context(struct peer *peer, const struct peer_options *options, struct error *err)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(options->texts * options->length);
    params.n_batch = PEER_BATCH;
    params.n_seq_max = (uint32_t)options->texts;
    params.n_threads = params.n_threads_batch = options->threads;
    params.type_k = params.type_v = kv_type(options->kv);
    set_flash(&params, options->flash_attention);
    peer->context = llama_init_from_model(peer->model, params);
    if (peer->context == NULL)
        return error_set(err, ERROR_INTERNAL, "llama.cpp made no context");
    return open_threads(peer, options->threads, err);
}

int peer_open(struct peer *peer, const struct peer_options *options, struct error *err)
{
    *peer = (struct peer){.texts = options->texts, .random = 1};
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
    if (set_load(&params, options->load, err) != 0)
        return -1;
    peer->model = llama_model_load_from_file(options->path, params);
    if (peer->model == NULL)
        return error_set(err, ERROR_IO, "%s: llama.cpp cannot load it", options->path);
    peer->vocab_size = llama_vocab_n_tokens(llama_model_get_vocab(peer->model));
    peer->batch = llama_batch_init(PEER_BATCH, 0, 1);
    return open_context(peer, options, err);
}

void peer_close(struct peer *peer)
{
    if (peer->context != NULL)
        llama_free(peer->context);
    close_threads(peer);
    if (peer->batch.token != NULL)
        llama_batch_free(peer->batch);
    if (peer->model != NULL)
        free_model(peer->model);
    llama_backend_free();
}

static int any_token(struct peer *peer)
{
    peer->random = peer->random * 1664525u + 1013904223u;
    return (int)((peer->random >> 8) % (unsigned)peer->vocab_size);
}

static void put(struct peer *peer, int text, int position, int id, bool logits)
{
    struct llama_batch *batch = &peer->batch;
    int i = batch->n_tokens++;
    batch->token[i] = id;
    batch->pos[i] = position;
    batch->n_seq_id[i] = 1;
    batch->seq_id[i][0] = text;
    batch->logits[i] = logits;
}

static int decode(struct peer *peer, struct error *err)
{
    int result = llama_decode(peer->context, peer->batch);
    llama_synchronize(peer->context);
    peer->batch.n_tokens = 0;
    if (result != 0)
        return error_set(err, ERROR_INTERNAL, "llama_decode: expected 0, got %d", result);
    return 0;
}

int peer_cut(struct peer *peer, int depth, struct error *err)
{
    for (int text = 0; text < peer->texts; text++)
        if (!cut_text(peer, text, depth))
            return error_set(err, ERROR_INTERNAL, "llama.cpp cannot cut a text");
    peer->at = depth;
    return 0;
}

int peer_fill(struct peer *peer, int tokens, struct error *err)
{
    for (int text = 0; text < peer->texts; text++)
        for (int done = 0; done < tokens;) {
            int count = tokens - done < PEER_BATCH ? tokens - done : PEER_BATCH;
            for (int i = 0; i < count; i++)
                put(peer, text, peer->at + done + i, any_token(peer), i == count - 1);
            if (decode(peer, err) != 0)
                return -1;
            done += count;
        }
    peer->at += tokens;
    return 0;
}

int peer_run(struct peer *peer, bool generates, int tokens, double *seconds, struct error *err)
{
    double start = clock_seconds();
    if (!generates) {
        if (peer_fill(peer, tokens, err) != 0)
            return -1;
    } else {
        for (int i = 0; i < tokens; i++, peer->at++) {
            for (int text = 0; text < peer->texts; text++)
                put(peer, text, peer->at, any_token(peer), true);
            if (decode(peer, err) != 0)
                return -1;
        }
    }
    *seconds = clock_seconds() - start;
    return 0;
}

int peer_read(struct peer *peer, const int *ids, int count, struct error *err)
{
    for (int i = 0; i < count; i++)
        put(peer, 0, peer->at + i, ids[i], true);
    peer->at += count;
    return decode(peer, err);
}

int peer_read_ids(const char *path, int *ids, int count, int vocab_size, struct error *err)
{
    FILE *file = fopen(path, "r");
    int read = 0;
    if (file == NULL)
        return error_set(err, ERROR_IO, "%s: cannot open", path);
    while (read < count && fscanf(file, "%d", &ids[read]) == 1 && ids[read] >= 0 &&
           ids[read] < vocab_size)
        read++;
    fclose(file);
    return read == count ? 0
                         : error_set(err, ERROR_INVALID,
                                     "%s: expected %d ids below %d, got another at number %d", path,
                                     count, vocab_size, read + 1);
}

int peer_quantize(const char *from, const char *to, const char *type, struct error *err)
{
    static const struct {
        const char *name;
        enum llama_ftype type;
    } types[] = {
        {"Q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},       {"Q4_1", LLAMA_FTYPE_MOSTLY_Q4_1},
        {"Q4_K_S", LLAMA_FTYPE_MOSTLY_Q4_K_S},   {"Q4_K_M", LLAMA_FTYPE_MOSTLY_Q4_K_M},
        {"Q6_K", LLAMA_FTYPE_MOSTLY_Q6_K},       {"Q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
        {"IQ4_NL", LLAMA_FTYPE_MOSTLY_IQ4_NL},
#ifdef PEER_IK
        {"IQ4_KS", LLAMA_FTYPE_MOSTLY_IQ4_KS},   {"Q4_0_R8", LLAMA_FTYPE_MOSTLY_Q4_0_R8},
        {"Q4_K_R4", LLAMA_FTYPE_MOSTLY_Q4_K_R4},
#endif
    };
    llama_log_set(quiet, NULL);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, type) != 0)
            continue;
        struct llama_model_quantize_params params = llama_model_quantize_default_params();
        params.ftype = types[i].type;
        return llama_model_quantize(from, to, &params) == 0
                   ? 0
                   : error_set(err, ERROR_INVALID, "%s: llama.cpp cannot write it as %s", from,
                               type);
    }
    return error_set(err, ERROR_INVALID, "expected a type such as Q4_0 or Q4_K_M, got %s", type);
}
