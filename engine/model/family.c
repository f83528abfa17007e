/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/family.h"

#include <stdio.h>
#include <string.h>

/* A new family is a name here. */
#define FAMILIES(X)     \
    X(regla)            \
    X(gpt_neox)         \
    X(gla)              \
    X(llama)            \
    X(mistral)          \
    X(mixtral)          \
    X(qwen2)            \
    X(qwen3)            \
    X(qwen3_moe)        \
    X(smollm3)          \
    X(granite)          \
    X(olmo2)            \
    X(olmo3)            \
    X(olmoe)            \
    X(gemma2)           \
    X(gemma3_text)      \
    X(gemma4)           \
    X(gemma4_text)      \
    X(gpt_oss)          \
    X(phi3)             \
    X(qwen3_next)       \
    X(qwen3_5)          \
    X(qwen3_5_text)     \
    X(qwen3_5_moe)      \
    X(qwen3_5_moe_text) \
    X(olmo_hybrid)      \
    X(gated_deltanet)   \
    X(delta_net)        \
    X(retnet)           \
    X(hgrn2)            \
    X(kda)              \
    X(rwkv7)            \
    X(mamba2)           \
    X(bamba)            \
    X(granitemoehybrid) \
    X(falcon_h1)        \
    X(nemotron_h)       \
    X(lfm2)             \
    X(lfm2_moe)         \
    X(lfm3)

#define DECLARE(name) extern const struct family family_##name;
FAMILIES(DECLARE)

#define POINTER(name) &family_##name,
static const struct family *const families[] = {FAMILIES(POINTER)};
enum { NUM_FAMILIES = sizeof families / sizeof *families };

/* Families that have something which is not here. */
#define LATENT "latent attention (MLA)"
#define GROUPS "a router of DeepSeek's kind beside softmax attention"
#define NAMES "experts under keys and names of its own"
#define IMAGES "positions of images beside experts"
static const struct {
    const char *name, *why;
} others[] = {
    {"kimi_linear", LATENT},
    {"bailing_hybrid", LATENT},
    {"deepseek_v2", LATENT},
    {"deepseek_v3", LATENT},
    {"deepseek_v32", LATENT},
    {"glm4_moe_lite", LATENT},
    {"glm_moe_dsa", LATENT},
    {"glm5_next", LATENT},
    {"glm5_next_text", LATENT},
    {"longcat_flash", LATENT},
    {"axk1", LATENT},
    {"axk2", LATENT},
    {"dots3_note", LATENT},
    {"dots3_note_text", LATENT},
    {"hy_v4", LATENT},
    {"hy_v4_vl", LATENT},
    {"hy_v4_vl_text", LATENT},
    {"mistral4", LATENT},
    {"mistral_large4", LATENT},
    {"mistral_large4_text", LATENT},
    {"mimo_v2_flash", "heads and keys and values that differ by layer"},
    {"llama4", "chunked attention"},
    {"llama4_text", "chunked attention"},
    {"deepseek_v4", "attention to compressed keys"},
    {"minimax", "lightning attention beside experts"},
    {"minimax_m2", "norms over all heads of q and k beside a router with a bias"},
    {"minimax_m3_vl", "attention to chosen blocks of keys"},
    {"minimax_m3_vl_text", "attention to chosen blocks of keys"},
    {"jamba", "Mamba-1"},
    {"mamba", "Mamba-1"},
    {"falcon_mamba", "Mamba-1"},
    {"zamba2", "blocks of attention that layers share, with low-rank changes of each"},
    {"xlstm", "mLSTM, a gate whose maximum the state keeps"},
    {"recurrent_gemma", "RG-LRU, a recurrence without heads"},
    {"gsa", "slots: a softmax between two recurrences"},
    {"lightnet", "a softmax over the positions before"},
    {"zaya", "convolutions within attention"},
    {"inkling_mm_model", "convolutions and relative positions within attention"},
    {"inkling_text", "convolutions and relative positions within attention"},
    {"inkling2", "convolutions and relative positions within attention"},
    {"inkling2_text", "convolutions and relative positions within attention"},
    {"inkling2_loop", "convolutions and relative positions within attention"},
    {"inkling2_loop_text", "convolutions and relative positions within attention"},
    {"qwen4_exp", "hyper-connections"},
    {"qwen4_exp_text", "hyper-connections"},
    {"qwen2_moe", "biases of q, k and v beside a shared expert with a gate"},
    {"qwen3_vl_moe", IMAGES},
    {"qwen3_vl_moe_text", IMAGES},
    {"qwen3_omni_moe", IMAGES},
    {"ernie4_5_vl_moe", IMAGES},
    {"ernie4_5_vl_moe_text", IMAGES},
    {"glm4v_moe", IMAGES},
    {"glm4v_moe_text", IMAGES},
    {"granitemoe", "experts of Granite 3"},
    {"granitemoeshared", "experts of Granite 3"},
    {"granitemoe_swa", "sinks beside experts of Granite"},
    {"glm4_moe", GROUPS},
    {"dots1", GROUPS},
    {"exaone_moe", GROUPS},
    {"solar_open", GROUPS},
    {"hy_v3", GROUPS},
    {"afmoe", GROUPS},
    {"ernie4_5_moe", "a router with a bias of its own (moe_statics)"},
    {"dbrx", "clipped q, k and v, and experts of all in one matrix"},
    {"phimoe", "a router by SparseMixer"},
    {"cohere2_moe", "experts beside attention in one branch"},
    {"flex_olmo", "norms behind the branches beside experts"},
    {"jetmoe", "mixtures of heads of attention"},
    {"hunyuan_v1_moe", "norms of q and k behind their rotation"},
    {"doge", "experts that are found by products of keys"},
    {"aria", NAMES},
    {"aria_text", NAMES},
    {"flint", NAMES},
    {"kolibri1", NAMES},
    {"laguna", NAMES},
    {"lara_mini", NAMES},
    {"mellum", NAMES},
    {"muse_spark", NAMES},
    {"muse_spark_text", NAMES},
    {"step3p5", NAMES},
    {"step3p7", NAMES},
};

static int refuse_others(const struct fields *root, struct error *err)
{
    const char *name = json_string_value(json_object_get(root->object, "model_type"));
    for (size_t i = 0; name && i < sizeof others / sizeof *others; i++)
        if (strcmp(name, others[i].name) == 0)
            return error_set(err, ERROR_UNSUPPORTED,
                             "%s: model_type: \"%s\" has %s (not supported)", root->place, name,
                             others[i].why);
    return 0;
}

static int parse_root(struct config *config, const struct fields *root, struct error *err)
{
    const char *names[NUM_FAMILIES];
    for (int i = 0; i < NUM_FAMILIES; i++)
        names[i] = families[i]->name;
    int family = 0;
    if (refuse_others(root, err) != 0 ||
        fields_choice(root, "model_type", FIELD_REQUIRED, names, NUM_FAMILIES, &family, err) != 0)
        return -1;
    config->family = families[family];
    return config->family->parse(config, root, err);
}

static struct config no_config(struct arena *arena)
{
    return (struct config){.arena = arena, .bos_token_id = -1, .fp8.dtype = DTYPE_BF16};
}

int family_parse(struct config *config, struct arena *arena, const char *text, size_t length,
                 struct error *err)
{
    *config = no_config(arena);
    return config_parse_file(config, "config.json", text, length, parse_root, err);
}

static const struct family *find_architecture(const struct gguf *gguf,
                                              const struct gguf_names **names, struct error *err)
{
    static const char key[] = "general.architecture";
    const char *known[2 * NUM_FAMILIES];
    char got[41];
    size_t count = 0;
    struct gguf_text name;
    if (gguf_text(gguf, key, FIELD_REQUIRED, &name, err) != 0)
        return NULL;
    snprintf(got, sizeof got, "%.*s", (int)(name.length < 40 ? name.length : 40), name.bytes);
    for (int i = 0; i < NUM_FAMILIES; i++)
        for (*names = families[i]->gguf; *names; *names = (*names)->also) {
            if (strcmp((*names)->architecture, got) == 0)
                return families[i];
            known[count++] = (*names)->architecture;
        }
    fields_unknown(gguf->file, key, got, known, count, err);
    return NULL;
}

int family_parse_gguf(struct config *config, struct arena *arena, const struct gguf *gguf,
                      struct tensors *tensors, struct error *err)
{
    *config = no_config(arena);
    const struct gguf_names *names;
    const struct family *family = find_architecture(gguf, &names, err);
    json_t *document = NULL;
    struct fields root;
    char place[160];
    if (!family || gguf_config(&document, names, family->name, gguf, tensors, err) != 0)
        return -1;
    snprintf(place, sizeof place, "%.120s, as config.json", gguf->file);
    int result = fields_root(&root, document, place, err);
    if (result == 0)
        result = parse_root(config, &root, err);
    if (result == 0)
        result = gguf_config_finish(config, names, document, tensors, err);
    json_decref(document);
    return result;
}

const char *family_names_random(char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < NUM_FAMILIES && used < size; i++)
        if (families[i]->random)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? " or " : "",
                                     families[i]->name);
    return text;
}
