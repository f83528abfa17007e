/* SPDX-License-Identifier: Apache-2.0 */
/* Runs llama.cpp, or ik_llama.cpp (PEER_IK), for turns.c and divergence.c: fills texts to a depth
 * and advances them slice by slice, through the calls that llama-bench and llama-batched-bench
 * make, with their defaults. */
#ifndef LOADTEST_LLAMA_PEER_H
#define LOADTEST_LLAMA_PEER_H

#include "engine/ops/formats.h"
#include "lib/base/error.h"

#include <llama.h>
#include <stdbool.h>

/* How to load the file: llama_load_mode of llama.h, except the last. */
enum { PEER_AS_IT_LIKES = -1, PEER_READ, PEER_MAP, PEER_REPACK };

enum { PEER_BATCH = 2048 }; /* the most tokens at once: llama-bench's default */

struct peer_options {
    const char *path;    /* a GGUF file */
    int flash_attention; /* llama_flash_attn_type: -1 llama.cpp's choice, 0 off, 1 on */
    int load;            /* PEER_REPACK: only ik_llama.cpp */
    enum kv_format kv;
    int threads;
    int texts, length; /* number of texts at once, and the most tokens of each */
};

struct peer {
    struct llama_model *model;
    struct llama_context *context;
    struct ggml_threadpool *threads;
    struct llama_batch batch; /* of at most PEER_BATCH tokens */
    int texts, vocab_size, at;
    unsigned random;
};

/* The caller closes the peer, also after a failure. */
int peer_open(struct peer *peer, const struct peer_options *options, struct error *err);
void peer_close(struct peer *peer);

/* Cuts each text to `depth` tokens. */
int peer_cut(struct peer *peer, int depth, struct error *err);
/* Lets one text after the other read `tokens` random tokens, untimed. */
int peer_fill(struct peer *peer, int tokens, struct error *err);
/* Advances each text by `tokens` random tokens: a prompt in one batch, with the last token's
 * logits; generating one token of each text at a time, with logits after each. */
int peer_run(struct peer *peer, bool generates, int tokens, double *seconds, struct error *err);
/* Reads at most PEER_BATCH tokens of one text and keeps the logits after each of its tokens, for
 * llama_get_logits_ith. */
int peer_read(struct peer *peer, const int *ids, int count, struct error *err);

/* The first ids [count] of a file, each below vocab_size. */
int peer_read_ids(const char *path, int *ids, int count, int vocab_size, struct error *err);

/* Writes a GGUF file in another of llama.cpp's types, as llama-quantize does. */
int peer_quantize(const char *from, const char *to, const char *type, struct error *err);

#endif
