/* SPDX-License-Identifier: Apache-2.0 */
#include "api/models.h"

#include "engine/model/author_sampling.h"

/* As vLLM calls it inside; {} where the model's author says nothing. */
static void encode_sampling(struct strbuf *buf, const struct author_sampling *sampling)
{
    const char *comma = "";
    strbuf_puts(buf, "{");
    for (int i = 0; sampling && i < SAMPLING_COUNT; i++) {
        if (!sampling->said[i])
            continue;
        strbuf_printf(buf, "%s\"%s\":%.9g", comma, sampling_rows[i].name, sampling->values[i]);
        comma = ",";
    }
    strbuf_puts(buf, "}");
}

void model_encode(struct strbuf *buf, const struct model_card *card)
{
    strbuf_puts(buf, "{\"id\":");
    strbuf_json_cstring(buf, card->id);
    strbuf_puts(buf, ",\"object\":\"model\",\"created\":");
    strbuf_json_int(buf, card->created);
    strbuf_puts(buf, ",\"owned_by\":\"regla\",\"root\":");
    strbuf_json_cstring(buf, card->root);
    strbuf_puts(buf, ",\"parent\":null,\"permission\":[],\"max_model_len\":");
    if (card->max_model_len > 0)
        strbuf_json_int(buf, card->max_model_len);
    else
        strbuf_puts(buf, "null");
    strbuf_puts(buf, ",\"family\":");
    strbuf_json_cstring(buf, card->family);
    strbuf_puts(buf, ",\"layer_types\":[");
    for (int i = 0; i < card->num_layers; i++) {
        if (i > 0)
            strbuf_puts(buf, ",");
        strbuf_json_cstring(buf, card->layer_types[i]);
    }
    strbuf_puts(buf, "],\"parameters\":");
    strbuf_json_int(buf, card->parameters);
    strbuf_puts(buf, ",\"dtype\":");
    strbuf_json_cstring(buf, card->dtype);
    strbuf_puts(buf, ",\"state_bytes_per_text\":");
    strbuf_json_int(buf, card->state_bytes_per_text);
    strbuf_puts(buf, ",\"kv_bytes_per_token\":");
    strbuf_json_int(buf, card->kv_bytes_per_token);
    strbuf_puts(buf, ",\"default_sampling_params\":");
    encode_sampling(buf, card->sampling);
    strbuf_puts(buf, "}");
}

void models_list_encode(struct strbuf *buf, const struct model_card *card, const char *const *names,
                        size_t count)
{
    struct model_card named = *card;
    strbuf_puts(buf, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            strbuf_puts(buf, ",");
        named.id = names[i];
        model_encode(buf, &named);
    }
    strbuf_puts(buf, "]}");
}

void load_encode(struct strbuf *buf, int64_t running, int64_t waiting)
{
    strbuf_puts(buf, "{\"running\":");
    strbuf_json_int(buf, running);
    strbuf_puts(buf, ",\"waiting\":");
    strbuf_json_int(buf, waiting);
    strbuf_puts(buf, ",\"server_load\":");
    strbuf_json_int(buf, running + waiting);
    strbuf_puts(buf, "}");
}

void version_encode(struct strbuf *buf, const char *version, const char *device,
                    const char *instruction_set)
{
    strbuf_puts(buf, "{\"version\":");
    strbuf_json_cstring(buf, version);
    strbuf_puts(buf, ",\"device\":");
    strbuf_json_cstring(buf, device);
    strbuf_puts(buf, ",\"instruction_set\":");
    strbuf_json_cstring(buf, instruction_set);
    strbuf_puts(buf, "}");
}

void status_encode(struct strbuf *buf, const char *status, const char *store)
{
    strbuf_puts(buf, "{\"status\":");
    strbuf_json_cstring(buf, status);
    if (store != NULL) {
        strbuf_puts(buf, ",\"store\":\"away\",\"store_is\":");
        strbuf_json_cstring(buf, store);
    }
    strbuf_puts(buf, "}");
}

void cancel_encode(struct strbuf *buf, const char *id, bool cancelled)
{
    strbuf_puts(buf, "{\"id\":");
    strbuf_json_cstring(buf, id);
    strbuf_puts(buf, ",\"cancelled\":");
    strbuf_json_bool(buf, cancelled);
    strbuf_puts(buf, "}");
}
