/* SPDX-License-Identifier: Apache-2.0 */
#include "server/server_memory.h"

#include "engine/model/model.h"
#include "engine/ops/packing.h"
#include "server/log.h"

#include <string.h>

/* Packed, without embeddings, which may stay in the file. */
int server_memory_check_weights(const struct model *model, const struct engine_options *options,
                                struct error *err)
{
    enum weight_format format =
        options->weights == WEIGHTS_AUTO ? packing_dtype_format(model->dtype) : options->weights;
    double embeddings = (double)model->embeddings.rows * (double)model->embeddings.cols;
    double bytes = ((double)model->parameters - embeddings) * weight_format_bytes(format) /
                   weight_format_block(format);
    return bytes > 0 ? memory_check((int64_t)bytes, "the weights alone", err) : 0;
}

/* All of the server's beside those that compute, of which one is the engine's: HTTP's, two pools of
 * workers with one more each, and the store's, the watcher's, the acceptor's, that which reads keys
 * again, the log's, the signals', main. */
static int num_threads(const struct server_memory_options *options)
{
    enum { OTHER_THREADS = 7 };
    return options->http_threads + 2 * (options->tokenizer_threads + 1) + OTHER_THREADS;
}

/* Whether memory counts for a limit as soon as it is asked for. Otherwise it does once it is
 * touched. */
static bool counts_untouched(enum free_memory_limit limiting)
{
    return limiting == FREE_MEMORY_COMMIT || limiting == FREE_MEMORY_ADDRESS ||
           limiting == FREE_MEMORY_DATA;
}

int64_t server_memory_taken(const struct server_memory_options *options,
                            const struct engine_info *info, enum free_memory_limit limiting)
{
    enum { STACK_TOUCHED = 128 << 10, STACK_WHOLE = 8 << 20, LOG_BYTES = 1 << 20 };
    int64_t bytes = memory_connection_bytes(options->max_connections);
    if (counts_untouched(limiting)) /* what is there is off already; the engine's thread is not */
        return bytes + (1 + options->store) * STACK_WHOLE;
    bytes += (num_threads(options) + info->threads) * STACK_TOUCHED + LOG_BYTES;
    if (strcmp(info->device, "cpu") == 0)
        bytes += (int64_t)info->workspace_bytes;
    return bytes;
}

/* The state of a text of so many tokens, and of the checkpoint that it begins on. */
static int64_t text_memory(const struct engine_info *info, int64_t tokens)
{
    return 2 * (int64_t)info->recurrent_bytes_per_text + tokens * (int64_t)info->kv_bytes_per_token;
}

int server_memory_share(void *context, const struct engine_info *info, size_t given, size_t *bytes,
                        struct error *err)
{
    enum { SHORT_TEXT = 256, USUAL_TEXT = 4096 };
    struct server_memory *memory = context;
    const struct server_memory_options *options = &memory->options;
    struct memory_needs *needs = &memory->needs;
    bool host = strcmp(info->device, "cpu") == 0;
    int64_t longest = options->max_model_len > 0 && options->max_model_len < USUAL_TEXT
                          ? options->max_model_len
                          : USUAL_TEXT;
    free_memory_read(&needs->now, &needs->sure);
    needs->taken = server_memory_taken(options, info, needs->now.limiting);
    needs->short_text = text_memory(info, longest < SHORT_TEXT ? longest : SHORT_TEXT);
    needs->usual_text = text_memory(info, longest);
    const int64_t asked[NUM_MEMORY_PARTS] = {
        [MEMORY_STATES] = !host       ? 0
                          : given > 0 ? (int64_t)given
                                      : MEMORY_AUTO,
        [MEMORY_HOST] = options->checkpoint_bytes,
        [MEMORY_FILES] = options->store ? MEMORY_AUTO : 0,
        [MEMORY_BODIES] = options->body_bytes,
        [MEMORY_REPLIES] = options->reply_bytes,
        [MEMORY_TEXTS] = MEMORY_AUTO,
        [MEMORY_DATABASE] = options->store ? MEMORY_AUTO : 0,
    };
    memcpy(needs->asked, asked, sizeof asked);
    if (memory_plan_make(&memory->plan, needs, err))
        return -1;
    if (host)
        *bytes = (size_t)memory->plan.bytes[MEMORY_STATES];
    return 0;
}

/* A body takes several times its bytes while it is read: of a budget that was not asked for, one
 * may take a part. */
void server_memory_limit_bodies(const struct server_memory *memory, struct service *service,
                                int64_t bytes)
{
    enum { BODY_PART = 32, STATE_PART = 2 };
    const struct server_memory_options *options = &memory->options;
    bool chosen = options->body_bytes == MEMORY_AUTO;
    int64_t body = options->max_body_bytes, state = options->max_state_bytes;
    admission_limit_bodies(&service->admission, bytes);
    service->max_body_bytes = chosen && body > bytes / BODY_PART ? bytes / BODY_PART : body;
    service->max_state_bytes = chosen && state > bytes / STATE_PART ? bytes / STATE_PART : state;
}

/* A budget that was not asked for may leave less than was. */
static void report_bodies(const struct server_memory_options *options,
                          const struct service *service)
{
    if (service->max_body_bytes < options->max_body_bytes ||
        service->max_state_bytes < options->max_state_bytes)
        log_message(LOG_LEVEL_INFO,
                    "bodies     %.1f MiB at most (--max-body-bytes), imported states %.1f MiB "
                    "(--max-state-bytes): what --max-body-memory auto leaves; a number there "
                    "leaves as much as was asked for",
                    (double)service->max_body_bytes / (1 << 20),
                    (double)service->max_state_bytes / (1 << 20));
}

void server_memory_report(const struct server_memory *memory, const struct service *service)
{
    memory_plan_report(&memory->plan, &memory->needs);
    report_bodies(&memory->options, service);
}
