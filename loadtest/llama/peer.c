#include "loadtest/llama/peer.h"

#include "engine/base/clock.h"

#include <ggml-cpu.h>

enum { BATCH = 2048 }; /* llama-bench's default */

static enum ggml_type kv_type(enum kv_format format)
{
    return format == KV_F32 ? GGML_TYPE_F32 : format == KV_BF16 ? GGML_TYPE_BF16 : GGML_TYPE_F16;
}

static void quiet(enum ggml_log_level level, const char *text, void *context)
{
    (void)context;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static int open_context(struct peer *peer, const struct peer_options *options, struct error *err)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(options->texts * options->length);
    params.n_batch = BATCH;
    params.n_seq_max = (uint32_t)options->texts;
    params.n_threads = params.n_threads_batch = options->threads;
    params.flash_attn_type = options->flash_attention;
    params.type_k = params.type_v = kv_type(options->kv);
    peer->context = llama_init_from_model(peer->model, params);
    if (peer->context == NULL)
        return error_set(err, ERROR_INTERNAL, "llama.cpp made no context");
    struct ggml_threadpool_params pool = ggml_threadpool_params_default(options->threads);
    peer->threads = ggml_threadpool_new(&pool);
    if (peer->threads == NULL)
        return error_set(err, ERROR_INTERNAL, "llama.cpp made no threads");
    llama_attach_threadpool(peer->context, peer->threads, NULL);
    return 0;
}

int peer_open(struct peer *peer, const struct peer_options *options, struct error *err)
{
    *peer = (struct peer){.room = BATCH, .texts = options->texts, .random = 1};
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
    params.load_mode = options->load;
    peer->model = llama_model_load_from_file(options->path, params);
    if (peer->model == NULL)
        return error_set(err, ERROR_IO, "%s: llama.cpp cannot load it", options->path);
    peer->vocab_size = llama_vocab_n_tokens(llama_model_get_vocab(peer->model));
    peer->batch = llama_batch_init(peer->room, 0, 1);
    return open_context(peer, options, err);
}

void peer_close(struct peer *peer)
{
    if (peer->context != NULL)
        llama_free(peer->context);
    if (peer->threads != NULL)
        ggml_threadpool_free(peer->threads);
    if (peer->batch.token != NULL)
        llama_batch_free(peer->batch);
    if (peer->model != NULL)
        llama_model_free(peer->model);
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
        if (!llama_memory_seq_rm(llama_get_memory(peer->context), text, depth, -1))
            return error_set(err, ERROR_INTERNAL, "llama.cpp cannot cut a text");
    peer->at = depth;
    return 0;
}

int peer_fill(struct peer *peer, int tokens, struct error *err)
{
    for (int text = 0; text < peer->texts; text++)
        for (int done = 0; done < tokens;) {
            int count = tokens - done < peer->room ? tokens - done : peer->room;
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
