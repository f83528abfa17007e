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

/* Families of transformers with experts that lack something here. */
#define LATENT "latent attention (MLA)"
static const struct {
    const char *name, *why;
} others[] = {
    {"kimi_linear", LATENT},
    {"bailing_hybrid", LATENT},
    {"deepseek_v2", LATENT},
    {"deepseek_v3", LATENT},
    {"glm4_moe_lite", LATENT},
    {"longcat_flash", LATENT},
    {"llama4", "chunked attention"},
    {"llama4_text", "chunked attention"},
    {"minimax", "lightning attention beside experts"},
    {"jamba", "Mamba-1"},
    {"qwen2_moe", "mixtures of experts of another kind"},
    {"granitemoe", "mixtures of experts of another kind"},
    {"granitemoeshared", "mixtures of experts of another kind"},
    {"glm4_moe", "mixtures of experts of another kind"},
    {"ernie4_5_moe", "mixtures of experts of another kind"},
    {"dbrx", "mixtures of experts of another kind"},
    {"phimoe", "mixtures of experts of another kind"},
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
