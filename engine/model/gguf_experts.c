/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/gguf_experts.h"

#include "engine/model/config.h"
#include "engine/model/gguf_dense.h"

#include <stdio.h>

static int check_number(const struct gguf_source *source, const char *key, double expected,
                        struct error *err)
{
    char full[GGUF_KEY_SIZE];
    const struct gguf_entry *entry = gguf_find(source->gguf, gguf_config_key(full, source, key));
    if (!entry)
        return 0;
    const bool number =
        !entry->array && (gguf_type_is_int(entry->type) || gguf_type_is_float(entry->type));
    const double value = !number                         ? -1
                         : gguf_type_is_int(entry->type) ? (double)gguf_int_at(entry, 0)
                                                         : gguf_number_at(entry, 0);
    /* a factor of 0 is none in llama.cpp */
    if (number && (value == expected || value == 0))
        return 0;
    return error_set(err, ERROR_UNSUPPORTED, "%s: %s: expected %g, got %g (not supported)",
                     source->gguf->file, full, expected, value);
}

int gguf_experts_check(const struct gguf_source *source, const struct gguf_routing *routing,
                       struct error *err)
{
    if (check_number(source, "expert_gating_func", routing->gating, err) != 0 ||
        (!routing->factor && check_number(source, "expert_weights_scale", 1, err) != 0))
        return -1;
    return !routing->groups && check_number(source, "expert_group_count", 1, err) != 0 ? -1 : 0;
}

int gguf_experts_layers(json_t *config, const struct gguf_source *source, struct error *err)
{
    json_t *plain = json_array();
    char name[64];
    if (gguf_config_set(config, "mlp_only_layers", plain, err) != 0)
        return -1;
    for (int64_t i = 0; i < source->layers; i++) {
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", (int)i);
        if (!tensors_find(source->tensors, name) &&
            json_array_append_new(plain, json_integer(i)) != 0)
            return error_set(err, ERROR_NO_MEMORY, "mlp_only_layers: out of memory");
    }
    return 0;
}

static const struct gguf_key keys[] = {GGUF_EXPERTS_KEYS};

static const struct gguf_name names[] = {
    {"blk.*.ffn_gate_inp", "model.layers.*.mlp.gate", GGUF_SAME},
    GGUF_EXPERTS_NAMES("model.layers.*.mlp.experts.", "gate_proj", "up_proj", "down_proj")};

static int complete(json_t *config, const struct gguf_source *source, struct error *err)
{
    return gguf_experts_check(source, &(struct gguf_routing){.gating = GGUF_GATING_SOFTMAX}, err) ==
                   0
               ? gguf_experts_layers(config, source, err)
               : -1;
}

const struct gguf_names gguf_experts = {.base = &gguf_dense_prenorm,
                                        .keys = keys,
                                        .num_keys = sizeof keys / sizeof *keys,
                                        .names = names,
                                        .num_names = sizeof names / sizeof *names,
                                        .complete = complete};
