/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

int config_library_refuse(const struct fields *root, const struct config_refusal *refusals,
                          size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++) {
        const struct config_refusal *refusal = &refusals[i];
        json_t *value = json_object_get(root->object, refusal->key);
        if (fields_ask_nothing(value, refusal->nothing))
            continue;
        char *text = json_is_string(value) || json_is_real(value) || json_is_integer(value)
                         ? json_dumps(value, JSON_ENCODE_ANY)
                         : NULL;
        error_set(err, ERROR_UNSUPPORTED, "%s: %s: expected %s, got %.60s (not supported)",
                  root->place, refusal->key, *refusal->nothing ? refusal->nothing : "null",
                  text ? text : fields_kind(value));
        free(text);
        return -1;
    }
    return 0;
}

static int parse_block(struct config *config, const struct fields *fields, struct error *err)
{
    const json_t *sizes;
    if (fields_list(fields, "weight_block_size", FIELD_OPTIONAL, &sizes, err) != 0)
        return -1;
    int64_t usual = json_object_get(fields->object, "weight_block_size") ? 0 : 128;
    config->fp8.block[0] = config->fp8.block[1] = usual;
    if (!sizes)
        return 0;
    for (size_t i = 0; i < 2; i++) {
        const json_t *size = json_array_get(sizes, i);
        if (json_array_size(sizes) != 2 || !json_is_integer(size) || json_integer_value(size) < 1 ||
            json_integer_value(size) > INT32_MAX)
            return error_set(err, ERROR_INVALID, "%s.weight_block_size: expected two integers >= 1",
                             fields->place);
        config->fp8.block[i] = json_integer_value(size);
    }
    return 0;
}

/* What `regla quantize` wrote. */
static int parse_blocks(struct config *config, const struct fields *fields, struct error *err)
{
    static const char *const known[] = {"quant_method", "format"}, *const formats[] = {"q4_1"};
    int format;
    if (fields_only(fields, known, COUNT(known), err) != 0 ||
        fields_choice(fields, "format", FIELD_REQUIRED, formats, COUNT(formats), &format, err) != 0)
        return -1;
    config->q4_1 = true;
    return 0;
}

int config_library_blocks(struct config *config, const struct fields *root, struct error *err)
{
    static const char *const methods[] = {"regla"};
    struct fields fields;
    int method;
    if (fields_object(root, "quantization_config", FIELD_OPTIONAL, &fields, err) != 0)
        return -1;
    if (!fields.object)
        return 0;
    return fields_choice(&fields, "quant_method", FIELD_REQUIRED, methods, COUNT(methods), &method,
                         err) == 0
               ? parse_blocks(config, &fields, err)
               : -1;
}

/* Of others' formats only transformers' fine-grained FP8. Its products are rounded to the model's
 * dtype. */
static int parse_quantization(struct config *config, const struct fields *root, struct error *err)
{
    enum { FP8, BLOCKS };
    static const char *const methods[] = {[FP8] = "fp8", [BLOCKS] = "regla"};
    static const char *const names[] = {"float32", "float16", "bfloat16"};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    struct fields fields;
    int method = FP8, dtype = 2;
    if (fields_object(root, "quantization_config", FIELD_OPTIONAL, &fields, err) != 0)
        return -1;
    if (!fields.object)
        return 0;
    const char *key = fields_has(root, "dtype") ? "dtype" : "torch_dtype";
    if (fields_choice(&fields, "quant_method", FIELD_REQUIRED, methods, COUNT(methods), &method,
                      err) != 0 ||
        fields_choice(root, key, FIELD_OPTIONAL, names, COUNT(names), &dtype, err) != 0)
        return -1;
    if (method == BLOCKS)
        return parse_blocks(config, &fields, err);
    config->fp8.scaled = true;
    config->fp8.dtype = dtypes[dtype];
    return parse_block(config, &fields, err);
}

/* One warning that names the defaults of transformers' generate that the file sets, and that nobody
 * applies here. */
static void warn_generation(struct config *config, const struct fields *root)
{
    static const struct config_refusal defaults[] = {
        {"bad_words_ids", "[]"},
        {"begin_suppress_tokens", "[]"},
        {"constraints", ""},
        {"diversity_penalty", "0"},
        {"dola_layers", ""},
        {"early_stopping", "false"},
        {"encoder_repetition_penalty", "1"},
        {"epsilon_cutoff", "0"},
        {"eta_cutoff", "0"},
        {"exponential_decay_length_penalty", ""},
        {"force_words_ids", ""},
        {"forced_bos_token_id", ""},
        {"forced_eos_token_id", ""},
        {"guidance_scale", "1"},
        {"length_penalty", "1"},
        {"max_length", "20"},
        {"max_new_tokens", ""},
        {"max_time", ""},
        {"min_length", "0"},
        {"min_new_tokens", "0"},
        {"no_repeat_ngram_size", "0"},
        {"num_beam_groups", "1"},
        {"num_beams", "1"},
        {"penalty_alpha", "0"},
        {"renormalize_logits", "false"},
        {"sequence_bias", ""},
        {"stop_strings", "[]"},
        {"suppress_tokens", "[]"},
        {"token_healing", "false"},
        {"top_h", ""},
        {"watermarking_config", ""},
    };
    char names[WARNING_BYTES / 2] = "";
    size_t used = 0, left_out = 0;
    for (size_t i = 0; i < COUNT(defaults); i++) {
        if (fields_ask_nothing(json_object_get(root->object, defaults[i].key), defaults[i].nothing))
            continue;
        size_t need = strlen(defaults[i].key) + 2;
        if (used + need + sizeof ", ..." > sizeof names) {
            left_out++;
            continue;
        }
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "",
                                 defaults[i].key);
    }
    if (used > 0 && left_out > 0)
        snprintf(names + used, sizeof names - used, ", ...");
    if (used > 0)
        warnings_add(&config->warnings,
                     "%s: %s: defaults of transformers' generate, which are not applied here: "
                     "requests say what they want",
                     root->place, names);
}

int config_library_keys(struct config *config, const struct fields *root, struct error *err)
{
    static const struct config_refusal refusals[] = {
        {"attribute_map", "{}"},  {"configuration_files", "[]"},
        {"decoder", ""},          {"fusion_config", ""},
        {"generator", ""},        {"is_encoder_decoder", "false"},
        {"per_layer_config", ""}, {"text_config", ""},
        {"text_encoder", ""},     {"transformers_weights", "\"model.safetensors\""},
    };
    if (config_library_refuse(root, refusals, COUNT(refusals), err) != 0 ||
        parse_quantization(config, root, err) != 0)
        return -1;
    warn_generation(config, root);
    return 0;
}

int config_library_act(const struct fields *root, const char *key, enum hidden_act *act,
                       struct error *err)
{
    static const char *const names[] = {
        "gelu",
        "gelu_new",
        "relu",
        "silu",
        "gelu_pytorch_tanh",
        "gelu_fast",
        "swish",
        "gelu_python",
        "gelu_python_tanh",
        "gelu_accurate",
        "relu2",
    };
    static const enum hidden_act acts[COUNT(names)] = {
        ACT_GELU, ACT_GELU_NEW, ACT_RELU,     ACT_SILU,     ACT_GELU_NEW, ACT_GELU_NEW,
        ACT_SILU, ACT_GELU,     ACT_GELU_NEW, ACT_GELU_NEW, ACT_RELU2,
    };
    int chosen = -1;
    if (fields_choice(root, key, FIELD_NOT_NULL, names, COUNT(names), &chosen, err) != 0)
        return -1;
    if (chosen >= 0)
        *act = acts[chosen];
    return 0;
}

int config_library_softcap(const struct fields *root, const char *key, float *softcap,
                           struct error *err)
{
    double value = (double)*softcap;
    if (json_is_null(json_object_get(root->object, key)))
        value = 0;
    if (fields_double(root, key, FIELD_OPTIONAL, 1e-6, 1e6, &value, err) != 0)
        return -1;
    *softcap = (float)value;
    return 0;
}

int config_library_attention(const struct fields *root, bool windows, struct error *err)
{
    static const struct config_refusal refusals[] = {
        {"attention_chunk_size", ""},
        {"kv_sharing_modes", ""},
        {"layer_types", ""},
        {"sliding_window", ""},
    };
    bool causal = true;
    if (config_library_refuse(root, refusals, windows ? 2 : COUNT(refusals), err) != 0 ||
        fields_bool(root, "is_causal", FIELD_NOT_NULL, &causal, err) != 0)
        return -1;
    if (!causal)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: is_causal: expected true, got false (not supported)", root->place);
    return 0;
}

static int parse_generation(struct config *config, const struct fields *root, struct error *err)
{
    if (config_token_ids(config, root, err) != 0)
        return -1;
    if (!fields_has(root, "eos_token_id") && config->num_eos > 0)
        warnings_add(&config->warnings,
                     "%s: eos_token_id: it gives none, so transformers' generate would never end a "
                     "text; here config.json's does",
                     root->place);
    warn_generation(config, root);
    return 0;
}

int config_library_generation(struct config *config, const char *text, size_t length,
                              struct error *err)
{
    return config_parse_file(config, "generation_config.json", text, length, parse_generation, err);
}

/* As many kinds as the list has names, which are as many as there are layers. */
static int make_kinds(int **kinds, struct config *config, const char *key, size_t count,
                      const struct fields *root, struct error *err)
{
    const size_t layers = (size_t)config->num_layers;
    const size_t most = layers > 0 ? layers : CONFIG_MAX_LAYERS;
    if (count < (layers > 0 ? layers : 1) || count > most)
        return error_set(err, ERROR_INVALID, "%s: %s: expected %s%zu names%s, got %zu", root->place,
                         key, layers > 0 ? "" : "1 to ", most,
                         layers > 0 ? " (num_hidden_layers)" : "", count);
    config->num_layers = (int64_t)count;
    *kinds = arena_alloc(config->arena, count, sizeof **kinds, err);
    return *kinds ? 0 : -1;
}

static int refuse_layer(const struct fields *root, const char *key, size_t i, const json_t *value,
                        const struct config_layer_name *names, int told, struct error *err)
{
    char expected[160] = "";
    const char *text = json_string_value(value);
    for (int n = 0, length = 0; n < told; n++)
        length += snprintf(expected + length, sizeof expected - (size_t)length, "%s%s",
                           n == 0          ? ""
                           : n == told - 1 ? " or "
                                           : ", ",
                           names[n].name);
    return error_set(err, ERROR_UNSUPPORTED, "%s: %s[%zu]: expected %s, got %.40s (not supported)",
                     root->place, key, i, expected, text ? text : fields_kind(value));
}

int config_library_layers(int **kinds, struct config *config, const char *key,
                          const struct config_layer_name *names, int told, int count,
                          const struct fields *root, struct error *err)
{
    const json_t *list;
    *kinds = NULL;
    if (fields_list(root, key, FIELD_OPTIONAL, &list, err) != 0)
        return -1;
    if (!list)
        return 0;
    if (make_kinds(kinds, config, key, json_array_size(list), root, err) != 0)
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        const char *text = json_string_value(value);
        int n = 0;
        while (n < count && !(text && strcmp(text, names[n].name) == 0))
            n++;
        if (n == count)
            return refuse_layer(root, key, i, value, names, told, err);
        (*kinds)[i] = names[n].kind;
    }
    return 0;
}
