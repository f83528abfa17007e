/* SPDX-License-Identifier: Apache-2.0 */
#include "api/llama_cpp.h"

#include "api/chat.h"
#include "api/chat_rules.h"
#include "api/parameters.h"
#include "api/request.h"
#include "engine/model/author_sampling.h"

static void encode_context(struct strbuf *buf, int64_t context)
{
    if (context > 0)
        strbuf_printf(buf, "\"n_ctx\":%lld,", (long long)context);
}

static void encode_params(struct strbuf *buf, const struct author_sampling *sampling)
{
    strbuf_puts(buf, "\"params\":{");
    for (int i = 0; i < SAMPLING_COUNT; i++)
        strbuf_printf(buf, "%s\"%s\":%.9g", i > 0 ? "," : "",
                      i == SAMPLING_repetition_penalty ? "repeat_penalty" : sampling_rows[i].name,
                      author_sampling_value(sampling, (enum sampling_number)i));
    strbuf_puts(buf, "}");
}

static void encode_text(struct strbuf *buf, const char *name, const char *text)
{
    if (!text)
        return;
    strbuf_printf(buf, ",\"%s\":", name);
    strbuf_json_cstring(buf, text);
}

void llama_cpp_props_encode(struct strbuf *buf, const struct llama_cpp_props *props)
{
    strbuf_puts(buf, "{\"default_generation_settings\":{");
    encode_context(buf, props->context);
    encode_params(buf, props->sampling);
    strbuf_printf(buf, "},\"total_slots\":%lld", (long long)props->slots);
    encode_text(buf, "model_alias", props->model);
    encode_text(buf, "model_path", props->path);
    if (props->template) {
        strbuf_puts(buf, ",\"chat_template\":");
        strbuf_json_string(buf, props->template, props->template_length);
    }
    encode_text(buf, "bos_token", props->bos_token);
    encode_text(buf, "eos_token", props->eos_token);
    strbuf_puts(buf, ",\"modalities\":{\"vision\":false,\"audio\":false},\"build_info\":\"regla ");
    strbuf_puts(buf, props->version);
    strbuf_puts(buf, "\",\"is_sleeping\":false}");
}

void llama_cpp_slots_encode(struct strbuf *buf, const struct llama_cpp_props *props)
{
    strbuf_puts(buf, "[");
    for (int64_t i = 0; i < props->slots; i++) {
        strbuf_printf(buf, "%s{\"id\":%lld,", i ? "," : "", (long long)i);
        encode_context(buf, props->context);
        strbuf_puts(buf, "\"speculative\":false,\"is_processing\":");
        strbuf_json_bool(buf, i < props->running);
        strbuf_puts(buf, "}");
    }
    strbuf_puts(buf, "]");
}

int llama_cpp_template_parse(struct completion_prompt *out, const char *body, size_t length,
                             const struct completion_limits *limits, struct api_error *err)
{
    json_t *fields = request_load(body, length, err);
    int result = -1;
    *out = (struct completion_prompt){0};
    if (!fields)
        return -1;
    if (!request_field(fields, "messages"))
        api_error_set(err, API_MISSING_PARAMETER, "messages", "messages is required");
    else if (request_model(fields, limits->models, limits->num_models, err) == 0 &&
             chat_rules_check_tools(fields, err) == 0) {
        parameters_warn_chat(fields, limits->warnings);
        result = chat_render(out, NULL, fields, length, NULL, limits, err);
    }
    json_decref(fields);
    return result;
}
