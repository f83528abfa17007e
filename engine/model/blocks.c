/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/blocks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int blocks_bind_matrices(const struct block_mixer *block, const struct block_matrix *matrices,
                         size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++) {
        char name[WEIGHT_NAME_SIZE];
        weights_name(name, "%s.%s", block->prefix, matrices[i].name);
        if (weights_linear(block->weights, name, matrices[i].rows, matrices[i].cols,
                           matrices[i].biased, matrices[i].matrix, err) != 0)
            return -1;
    }
    return 0;
}

/* "prefix.name", or the name alone when the prefix is empty. */
static const char *below(char full[WEIGHT_NAME_SIZE], const char *prefix, const char *name)
{
    return weights_name(full, "%s%s%s", prefix, *prefix ? "." : "", name);
}

static int bind_norm(struct weights *weights, const char *prefix, const char *name, int64_t size,
                     struct norm *norm, struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    return weights_norm(weights, below(full, prefix, name), size, norm, err);
}

static int bind_table(const struct model *model, struct weights *weights, const char *prefix,
                      const char *name, int64_t rows, struct matrix *table, struct error *err)
{
    char full[WEIGHT_NAME_SIZE], tensor[WEIGHT_NAME_SIZE];
    return weights_matrix(weights, weights_name(tensor, "%s.weight", below(full, prefix, name)),
                          rows, model->hidden_size, table, err);
}

static int bind_mlp(struct weights *weights, const struct model *model,
                    const struct block_names *names, const char *prefix, struct layer *layer,
                    struct error *err)
{
    const int64_t hidden = model->hidden_size, inner = model->intermediate_size;
    char gate[WEIGHT_NAME_SIZE], up[WEIGHT_NAME_SIZE], down[WEIGHT_NAME_SIZE];
    bool gated = names->mlp == BLOCK_MLP_GATED;
    if (names->mlp == BLOCK_MLP_EITHER)
        gated = weights_has(weights, weights_name(gate, "%s.%s.weight", prefix, names->gate_proj));
    if (gated && weights_linear(weights, weights_name(gate, "%s.%s", prefix, names->gate_proj),
                                inner, hidden, names->biased, &layer->gate_proj, err) != 0)
        return -1;
    if (weights_linear(weights, weights_name(up, "%s.%s", prefix, names->up_proj), inner, hidden,
                       names->biased, &layer->up_proj, err) != 0)
        return -1;
    return weights_linear(weights, weights_name(down, "%s.%s", prefix, names->down_proj), hidden,
                          inner, names->biased, &layer->down_proj, err);
}

/* The mixer of layer i as its configuration says; a pair's second part goes into *second. */
static void configure_mixer(const struct config *config, int i, struct mixer *mixer,
                            struct mixer *second)
{
    const struct mixer_config *own = &config->mixers[config->layer_mixers[i]];
    *mixer = own->mixer;
    if (own->is_pair) {
        *mixer = config->mixers[own->parts[0]].mixer;
        *second = config->mixers[own->parts[1]].mixer;
        mixer->name = second->name = own->mixer.name;
        mixer->output_gate = own->mixer.output_gate;
        mixer->concatenates = own->mixer.concatenates;
        mixer->second = second;
    }
    for (struct mixer *part = mixer; part != NULL; part = part->second) {
        if (part->num_heads == 0)
            part->num_heads = (int)config->num_heads;
        part->num_kv_heads = part->num_heads;
    }
}

static int bind_layer(struct model *model, const struct config *config, struct weights *weights,
                      const struct block_names *names, int i,
                      int (*bind_mixer)(const struct block_mixer *, struct error *),
                      struct error *err)
{
    struct layer *layer = &model->layers[i];
    const struct mixer_config *mixer = &config->mixers[config->layer_mixers[i]];
    char prefix[48];
    snprintf(prefix, sizeof prefix, "%s%slayers.%d", names->root, *names->root ? "." : "", i);
    layer->attn_norm = layer->mlp_norm =
        (struct norm){.kind = config->norm_kind, .eps = config->norm_eps};
    struct mixer *second = NULL;
    double rotary_pct = mixer->rotary_pct, second_rotary_pct = 1;
    if (mixer->is_pair) {
        second = arena_alloc(weights->arena, 1, sizeof *second, err);
        if (!second)
            return -1;
        rotary_pct = config->mixers[mixer->parts[0]].rotary_pct;
        second_rotary_pct = config->mixers[mixer->parts[1]].rotary_pct;
    }
    configure_mixer(config, i, &layer->mixer, second);
    struct block_mixer block = {.weights = weights,
                                .config = config,
                                .rotary_pct = rotary_pct,
                                .second_rotary_pct = second_rotary_pct,
                                .mixer = &layer->mixer};
    snprintf(block.prefix, sizeof block.prefix, "%s.%s", prefix, names->mixer);
    if (bind_norm(weights, prefix, names->attn_norm, model->hidden_size, &layer->attn_norm, err) !=
        0)
        return -1;
    if (model->intermediate_size == 0) {
        layer->mlp_norm.kind = NORM_NONE;
        return bind_mixer(&block, err);
    }
    if (bind_norm(weights, prefix, names->mlp_norm, model->hidden_size, &layer->mlp_norm, err) !=
            0 ||
        bind_mixer(&block, err) != 0)
        return -1;
    return bind_mlp(weights, model, names, prefix, layer, err);
}

/* transformers ties the two matrices only where a file has one of them, or two that are equal. */
static int bind_tied_head(struct model *model, struct weights *weights,
                          const struct block_names *names, struct error *err)
{
    char name[WEIGHT_NAME_SIZE], full[WEIGHT_NAME_SIZE], table[WEIGHT_NAME_SIZE];
    struct tensor *head =
        tensors_find(weights->file, weights_name(name, "%s.weight", names->lm_head));
    model->lm_head = model->embeddings;
    if (!head)
        return 0;
    const struct tensor *embeddings =
        tensors_find(weights->file,
                     weights_name(table, "%s.weight", below(full, names->root, names->embeddings)));
    /* What has scales or a bias beside it is more than a copy. */
    bool alone = head->dtype != TENSOR_F8_E4M3 &&
                 !tensors_find(weights->file, weights_name(full, "%s.bias", names->lm_head));
    if (alone && embeddings && head->dtype == embeddings->dtype &&
        head->bytes == embeddings->bytes &&
        memcmp(head->data, embeddings->data, head->bytes) == 0) {
        tensor_ignore(head);
        warnings_add(
            weights->warnings,
            "%s: tensor \"%s\": left out: tie_word_embeddings is true, and it is a copy of "
            "the embeddings",
            head->file, name);
        return 0;
    }
    warnings_add(weights->warnings,
                 "%s: tensor \"%s\": tie_word_embeddings is true, but it is no copy of the "
                 "embeddings: it is used, as in transformers",
                 head->file, name);
    model->tied = false;
    return weights_linear(weights, names->lm_head, model->vocab_size, model->hidden_size,
                          names->head_biased, &model->lm_head, err);
}

/* What stands before the layers and behind them. */
static int bind_ends(struct model *model, const struct config *config, struct weights *weights,
                     const struct block_names *names, struct error *err)
{
    const struct norm norm = {.kind = config->norm_kind, .eps = config->norm_eps};
    if (bind_table(model, weights, names->root, names->embeddings, model->vocab_size,
                   &model->embeddings, err) != 0)
        return -1;
    if (config->position_embedding == POSITION_EMBEDDING_LEARNED &&
        bind_table(model, weights, names->root, names->position_embeddings,
                   config->max_position_embeddings, &model->position_embeddings, err) != 0)
        return -1;
    if (config->embedding_norm)
        model->embedding_norm = norm;
    if (config->embedding_norm && bind_norm(weights, names->root, names->embedding_norm,
                                            model->hidden_size, &model->embedding_norm, err) != 0)
        return -1;
    model->final_norm = norm;
    if (bind_norm(weights, names->root, names->final_norm, model->hidden_size, &model->final_norm,
                  err) != 0)
        return -1;
    if (model->tied)
        return bind_tied_head(model, weights, names, err);
    return weights_linear(weights, names->lm_head, model->vocab_size, model->hidden_size,
                          names->head_biased, &model->lm_head, err);
}

/* Where a file was saved from the model below its head, its names do not begin with the root, which
 * transformers calls base_model_prefix and puts before them. */
static const char *find_root(struct weights *weights, const struct block_names *names)
{
    char full[WEIGHT_NAME_SIZE], with[WEIGHT_NAME_SIZE], without[WEIGHT_NAME_SIZE];
    below(full, names->root, names->embeddings);
    weights_name(with, "%s.weight", full);
    weights_name(without, "%s.weight", names->embeddings);
    const struct tensor *bare = tensors_find(weights->file, without);
    if (!bare || weights_has(weights, with))
        return names->root;
    warnings_add(weights->warnings,
                 "%s: tensor \"%s\": names do not begin with \"%s.\": they are read as if they did",
                 bare->file, without, names->root);
    return "";
}

int blocks_bind(struct model *model, const struct config *config, struct weights *weights,
                const struct block_names *names,
                int (*bind_mixer)(const struct block_mixer *, struct error *), struct error *err)
{
    struct block_names found = *names;
    found.root = find_root(weights, names);
    if (bind_ends(model, config, weights, &found, err) != 0)
        return -1;
    for (int i = 0; i < model->num_layers; i++)
        if (bind_layer(model, config, weights, &found, i, bind_mixer, err) != 0)
            return -1;
    return 0;
}

static void random_table(struct random_list *list, const char *prefix, const char *name,
                         int64_t rows)
{
    char full[WEIGHT_NAME_SIZE];
    random_list_matrix(list, weights_name(full, "%s.%s", prefix, name), rows,
                       list->config->hidden_size, 1);
}

static void random_layer(struct random_list *list, const struct block_names *names, int i,
                         void (*list_mixer)(struct random_list *, const char *,
                                            const struct mixer *))
{
    const struct config *config = list->config;
    const int64_t hidden = config->hidden_size, inner = config->intermediate_size;
    char layer[48], mixer[WEIGHT_NAME_SIZE / 2];
    snprintf(layer, sizeof layer, "%s.layers.%d", names->root, i);
    snprintf(mixer, sizeof mixer, "%s.%s", layer, names->mixer);
    random_list_norm(list, layer, names->attn_norm, config->norm_kind, hidden);
    struct mixer own, second;
    configure_mixer(config, i, &own, &second);
    list_mixer(list, mixer, &own);
    if (inner == 0)
        return;
    random_list_norm(list, layer, names->mlp_norm, config->norm_kind, hidden);
    if (names->mlp != BLOCK_MLP_PLAIN && list->shapes->glu)
        random_list_linear(list, layer, names->gate_proj, inner, hidden, 0);
    random_list_linear(list, layer, names->up_proj, inner, hidden, 0);
    random_list_output(list, layer, names->down_proj, hidden, inner);
}

void blocks_random(struct random_list *list, const struct block_names *names,
                   void (*list_mixer)(struct random_list *, const char *prefix,
                                      const struct mixer *))
{
    const struct config *config = list->config;
    random_table(list, names->root, names->embeddings, config->vocab_size);
    if (config->position_embedding == POSITION_EMBEDDING_LEARNED)
        random_table(list, names->root, names->position_embeddings,
                     config->max_position_embeddings);
    if (config->embedding_norm)
        random_list_norm(list, names->root, names->embedding_norm, config->norm_kind,
                         config->hidden_size);
    for (int i = 0; i < (int)config->num_layers; i++)
        random_layer(list, names, i, list_mixer);
    random_list_norm(list, names->root, names->final_norm, config->norm_kind, config->hidden_size);
    if (!config->tied)
        random_list_matrix(list, names->lm_head, config->vocab_size, config->hidden_size,
                           1 / sqrt((double)config->hidden_size));
}
