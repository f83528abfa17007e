/* SPDX-License-Identifier: Apache-2.0 */
#include "server/capacity.h"

#include "engine/model/four_bits.h"
#include "engine/model/model.h"
#include "engine/ops/activation_cost.h"
#include "lib/base/size_text.h"
#include "server/log.h"

#include <stdio.h>
#include <string.h>

/* Of texts that the log tells how many fit of. */
static const int64_t LENGTHS[] = {2048, 8192, 32768};
enum { NUM_LENGTHS = sizeof LENGTHS / sizeof *LENGTHS };

size_t capacity_share(const struct engine *engine)
{
    enum { PART = 16, SHORT_TOKENS = 256 };
    size_t share = engine_info(engine)->state_memory_bytes / PART;
    return share >= engine_state_bytes(engine, SHORT_TOKENS) ? share : 0;
}

static int64_t texts_that_fit(const struct engine *engine, int64_t tokens, int64_t longest)
{
    size_t bytes = engine_state_bytes(engine, tokens);
    if (longest > 0 && tokens > longest)
        return 0;
    return bytes ? (int64_t)(engine_info(engine)->state_memory_bytes / bytes) : INT64_MAX;
}

/* Whose products a GPU runs, where they are not the engine's own. */
static void report_products(const struct engine_info *info)
{
    char second[SIZE_TEXT];
    if (info->products == PRODUCTS_OWN)
        return;
    log_message(LOG_LEVEL_INFO, "products   %s; for them the weights are there once more, %s",
                products_name(info->products), size_text((double)info->second_bytes, second));
    log_message(LOG_LEVEL_WARN, "%s", products_caution(info->products));
}

/* The formats, and what rounding the inputs of products costs; it was measured on the CPU alone. */
static void report_formats(const struct engine_info *info)
{
    const struct activation_cost *cost = activation_cost(info->activations, info->weights);
    char weights[SIZE_TEXT], words[160] = "";
    if (cost != NULL && strcmp(info->device, "cpu") == 0)
        snprintf(words, sizeof words,
                 " (with SmolLM2 %.1f %% of the likeliest next tokens stay the same, mean "
                 "divergence %.2g nats)",
                 100 * cost->same_best, cost->divergence);
    log_message(LOG_LEVEL_INFO, "weights    %s as %s%s, KV as %s, activations as %s%s",
                size_text((double)info->weights_bytes, weights), weight_format_name(info->weights),
                info->q4_blocks != 0 ? " of " FOUR_BITS_FILE : "", kv_format_name(info->kv),
                activation_format_name(info->activations), words);
}

static void report_model(const struct engine *engine, double seconds)
{
    const struct engine_info *info = engine_info(engine);
    const struct model *model = engine_model(engine);
    char workspace[SIZE_TEXT], pinned[SIZE_TEXT], state[SIZE_TEXT], kv[SIZE_TEXT];
    log_message(LOG_LEVEL_INFO,
                "model      %s: family %s, %d layers, %lld parameters, %s; loaded in %.2f s",
                model->name, model->family, model->num_layers, (long long)model->parameters,
                dtype_name(model->dtype), seconds);
    log_message(LOG_LEVEL_INFO, "device     %s, %s, %d threads", info->device,
                info->instruction_set, info->threads);
    if (info->refused_set != NULL)
        log_message(LOG_LEVEL_WARN, "%s", info->refused_set);
    report_formats(info);
    report_products(info);
    if (info->pinned_bytes > 0)
        log_message(LOG_LEVEL_INFO, "workspace  %s, and %s of the host's for copies",
                    size_text((double)(info->workspace_bytes - info->second_bytes), workspace),
                    size_text((double)info->pinned_bytes, pinned));
    size_text((double)info->recurrent_bytes_per_text, state);
    if (info->kv_bytes_per_token == 0)
        log_message(LOG_LEVEL_INFO, "state      %s per text, and no KV", state);
    else
        log_message(LOG_LEVEL_INFO, "state      %s per text, and KV %s per token", state,
                    size_text((double)info->kv_bytes_per_token, kv));
}

/* What the memory for states has room for: texts of --max-model-len, or of some usual lengths. */
static void report_texts(const struct engine *engine, int64_t max_model_len, int64_t longest)
{
    char budget[SIZE_TEXT], texts[160] = "";
    size_t used = 0;
    const bool constant = engine_info(engine)->kv_bytes_per_token == 0;
    int count = max_model_len ? 1 : NUM_LENGTHS;
    if (constant)
        snprintf(texts, sizeof texts, "%lld texts of any length",
                 (long long)texts_that_fit(engine, LENGTHS[0], longest));
    for (int i = 0; !constant && i < count; i++) {
        int64_t length = max_model_len ? max_model_len : LENGTHS[i];
        used += (size_t)snprintf(texts + used, sizeof texts - used, "%s%lld %s%lld%s",
                                 i ? ", " : "", (long long)texts_that_fit(engine, length, longest),
                                 i ? "of " : "texts of ", (long long)length, i ? "" : " tokens");
    }
    log_message(LOG_LEVEL_INFO, "budget     %s for states and KV (--state-memory): %s fit%s",
                size_text((double)engine_info(engine)->state_memory_bytes, budget), texts,
                max_model_len && !constant ? " (--max-model-len)" : "");
}

void capacity_report(const struct engine *engine, double seconds, int64_t max_model_len,
                     int64_t max_texts, int64_t longest)
{
    report_model(engine, seconds);
    report_texts(engine, max_model_len, longest);
    int64_t asked = max_model_len ? max_model_len : LENGTHS[0];
    int64_t fit = texts_that_fit(engine, asked, longest);
    if (fit == 0)
        log_message(LOG_LEVEL_WARN,
                    "not one text of %lld tokens fits the memory for states: the longest has %lld",
                    (long long)asked, (long long)longest);
    else if (fit < max_texts)
        log_message(LOG_LEVEL_WARN,
                    "only %lld of the %lld texts of %lld tokens that may run at once fit: the "
                    "others will wait",
                    (long long)fit, (long long)max_texts, (long long)asked);
}
