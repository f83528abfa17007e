/* SPDX-License-Identifier: Apache-2.0 */
/* Writes small JSON bodies: of GET /v1/models, /v1/models/{id}, /load, /version, /health, /ready,
 * and the reply to a cancel. */
#ifndef API_MODELS_H
#define API_MODELS_H

#include "api/strbuf.h"

struct author_sampling;

struct model_card {
    const char *id;        /* the served name */
    const char *root;      /* the model's directory as given on the command line, or its name */
    int64_t created;       /* seconds since 1970: when it was loaded */
    int64_t max_model_len; /* 0: unlimited (null) */
    const char *family;    /* "regla", "gpt_neox", "gla" */
    const char *const *layer_types; /* [num_layers]: the mixer of each layer, by name */
    int num_layers;
    int64_t parameters;
    const char *dtype; /* of the weights: "F32", "F16", "BF16" */
    int64_t state_bytes_per_text, kv_bytes_per_token;
    const struct author_sampling *sampling; /* of requests that say nothing; NULL: the API's */
};

void model_encode(struct strbuf *buf, const struct model_card *card);
/* One card for each name [count]. */
void models_list_encode(struct strbuf *buf, const struct model_card *card, const char *const *names,
                        size_t count);

/* server_load: all requests that are not answered yet, as vLLM's /load has it. */
void load_encode(struct strbuf *buf, int64_t running, int64_t waiting);

/* device and instruction_set as in struct engine_info. */
void version_encode(struct strbuf *buf, const char *version, const char *device,
                    const char *instruction_set);
/* {"status": ...}. store: what a store that is away is instead; NULL: none is away. */
void status_encode(struct strbuf *buf, const char *status, const char *store);
void cancel_encode(struct strbuf *buf, const char *id, bool cancelled); /* {"id", "cancelled"} */

#endif
