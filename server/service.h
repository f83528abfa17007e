/* SPDX-License-Identifier: Apache-2.0 */
/* What the threads of the server share. It is set before the first of them starts. Only
 * `scheduler`, and `engine` with what follows it, are there once the phase has been SERVICE_READY.
 */
#ifndef SERVER_SERVICE_H
#define SERVER_SERVICE_H

#include "api/chat_syntax.h"
#include "api/completion.h"
#include "api/models.h"
#include "engine/engine.h"
#include "lib/jinja/chat_template.h"
#include "lib/text/tokenizer.h"
#include "server/admission.h"
#include "server/metrics.h"
#include "server/names.h"
#include "server/noted.h"
#include "server/registry.h"
#include "server/worker.h"

enum service_phase { SERVICE_LOADING, SERVICE_READY, SERVICE_DRAINING, SERVICE_FAILED };

struct scheduler;
struct shared_prefixes;
struct store;
struct state_tree;
struct sessions;
struct replay;
struct grammars;
struct own_tokens;

/* What the page has of the server's options. policy.length 0: there is no page. */
struct page_texts {
    struct strbuf policy; /* its Content-Security-Policy, with a 0 at the end */
    struct strbuf config; /* the beginning of config.json */
};

struct service {
    _Atomic int phase;          /* enum service_phase */
    _Atomic bool store_failing; /* the last commit of sessions failed */
    /* While it loads: what the store is that is waited for; NULL: it is not waited for. */
    const char *_Atomic store_waits;
    _Atomic bool giving_up;      /* who waits for the disk is told that the server ends */
    _Atomic size_t *unsaved;     /* sessions that the disk does not have as they are */
    _Atomic int replies_waiting; /* whose clients wait until they are on disk */

    const char *model;         /* the first served name, which replies have that asked for none */
    const char *const *models; /* [num_models]: all of them: num_names names, then patterns */
    size_t num_models, num_names;
    struct tokenizer *tokenizer;  /* with limits.token_ids_only it has no tokens */
    struct chat_template chat;    /* without limits.token_ids_only */
    struct chat_syntax syntax[2]; /* of its template, and of that for tools */
    struct completion_limits limits;
    int32_t bos_token_id; /* -1: none */
    int32_t *eos_ids;     /* [num_eos] */
    size_t num_eos;
    char fingerprint[128];                           /* system_fingerprint */
    bool vllm_names;                                 /* --metrics-compat vllm */
    bool reuses_prefixes;                            /* --prefix-cache */
    _Atomic int64_t max_body_bytes, max_state_bytes; /* of a request; of an imported state */
    double stall_timeout_s; /* a reader that takes nothing for so long is cancelled */

    struct metrics metrics;
    struct admission admission;
    struct registry registry;
    struct worker_pool *workers;
    struct worker_pool
        *renderers; /* of chat templates, whose rendering is bounded but may be long */
    struct scheduler *scheduler;

    struct engine *engine;
    struct model_card card;
    struct page_texts page;
    int64_t memory_limit_tokens; /* the longest text that is accepted; 0: no limit */

    /* The engine thread's while it runs; made before it starts, freed after it has ended. */
    struct store *store;              /* NULL: no --state-dir */
    struct shared_prefixes *prefixes; /* NULL: no --share-prefixes */
    struct state_tree *tree;
    struct sessions *sessions;

    /* any thread's: they have locks of their own */
    struct replay *replay;
    struct grammars *grammars;     /* NULL with limits.token_ids_only */
    struct own_tokens *own_tokens; /* the same, and with limits.content_tokens */

    struct noted noted;

    pthread_mutex_t owners_lock;
    struct names owners; /* by the index of the API key; one, if there are no keys */
};

/* The name that the tree, sessions and files use for an API key; key: its index. Any thread; it
 * lives as long as the service. */
const char *service_owner(struct service *service, int key);

static inline enum service_phase service_phase(struct service *service)
{
    return (enum service_phase)atomic_load(&service->phase);
}

/* What the engine says about itself. NULL: it is not open yet. */
const struct engine_info *service_engine_info(struct service *service);

/* Checks that there is a tokenizer: else API_NOT_IMPLEMENTED. */
int service_check_tokenizer(const struct service *service, struct api_error *err);

/* Checks that the model is there, whatever has become of it: else API_LOADING. */
int service_check_loaded(struct service *service, struct api_error *err);

/* Checks that a request may start work now: else API_LOADING, API_DRAINING or API_ENGINE_FAILED. */
int service_check_ready(struct service *service, struct api_error *err);

#endif
