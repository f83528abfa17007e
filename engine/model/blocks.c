/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/blocks.h"

#include "engine/model/blocks_mlp.h"

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

int blocks_split_heads(const struct block_mixer *block, const struct matrix *fused,
                       struct matrix *const *parts, int count, struct error *err)
{
    const int64_t rows = fused->rows / count, head = rows / block->mixer->num_heads;
    *parts[0] = *fused;
    for (int i = 0; count > 1 && i < count; i++) {
        float *bias = fused->bias
                          ? arena_alloc(block->weights->arena, (size_t)rows, sizeof *bias, err)
                          : NULL;
        if (fused->bias && !bias)
            return -1;
        *parts[i] = *fused;
        parts[i]->rows = rows;
        parts[i]->bias = bias;
        parts[i]->part = (struct row_part){i * head, head, count * head};
        for (int64_t r = 0; bias && r < rows; r++)
            bias[r] = fused->bias[row_part_row(&parts[i]->part, r)];
    }
    return 0;
}

int blocks_decay(const struct block_mixer *block, struct error *err)
{
    char name[WEIGHT_NAME_SIZE];
    int64_t heads = block->mixer->num_heads;
    const float *logs;
    if (weights_floats(block->weights, weights_name(name, "%s.A_log", block->prefix), 1, &heads,
                       &logs, err) != 0)
        return -1;
    const bool made = tensors_find(block->weights->file, name)->decay;
    float *decay = arena_alloc(block->weights->arena, (size_t)heads, sizeof *decay, err);
    if (!decay)
        return -1;
    for (int64_t h = 0; h < heads; h++) {
        decay[h] = made ? -logs[h] : (float)exp((double)logs[h]);
        if (isinf(decay[h]) || !(decay[h] >= 0))
            return weights_bad(block->weights, name, err,
                               "expected numbers %s, got %g at element %lld",
                               made ? "up to 0" : "under 88.7", (double)logs[h], (long long)h);
    }
    block->mixer->decay = decay;
    return 0;
}

int blocks_decay_by_feature(const struct block_mixer *block, struct error *err)
{
    struct mixer *mixer = block->mixer;
    const int64_t features = (int64_t)mixer->num_heads * mixer->features;
    float *decay = arena_alloc(block->weights->arena, (size_t)features, sizeof *decay, err);
    if (!decay || blocks_decay(block, err) != 0)
        return -1;
    for (int64_t j = 0; j < features; j++)
        decay[j] = mixer->decay[j / mixer->features];
    mixer->decay = decay;
    return 0;
}

int blocks_bind_convs(const struct block_mixer *block, const char *const *names, struct error *err)
{
    struct mixer *mixer = block->mixer;
    const int64_t channels[3] = {(int64_t)mixer->num_qk_heads * mixer->head_dim,
                                 (int64_t)mixer_key_heads(mixer) * mixer->head_dim,
                                 (int64_t)mixer->num_kv_heads * mixer->value_dim};
    struct conv_part parts[3];
    char full[3][WEIGHT_NAME_SIZE];
    if (mixer->conv.width == 0)
        return 0;
    for (int i = 0; i < 3; i++)
        parts[i] =
            (struct conv_part){weights_name(full[i], "%s.%s_conv1d", block->prefix, names[i]),
                               channels[i], 0, channels[i], 1};
    return weights_conv(block->weights, parts, 3, WEIGHT_NO_BIAS, &mixer->conv, err);
}

/* Parameters of a norm of all heads, each with the same ones or with its own. */
static int64_t qk_norm_size(const struct mixer *mixer, int heads, int64_t head_dim)
{
    return mixer->qk_norm_scope == NORM_SCOPE_HEAD ? head_dim : heads * head_dim;
}

int blocks_bind_qk_norms(const struct block_mixer *block, struct error *err)
{
    struct mixer *mixer = block->mixer;
    char name[WEIGHT_NAME_SIZE];
    if (weights_norm(block->weights, weights_name(name, "%s.q_norm", block->prefix),
                     qk_norm_size(mixer, mixer->num_qk_heads, mixer->head_dim), &mixer->q_norm,
                     err) != 0)
        return -1;
    return weights_norm(block->weights, weights_name(name, "%s.k_norm", block->prefix),
                        qk_norm_size(mixer, mixer_key_heads(mixer), mixer->head_dim),
                        &mixer->k_norm, err);
}

void blocks_random_qk_norms(struct random_list *list, const char *prefix, const struct mixer *mixer,
                            int64_t head_dim)
{
    random_list_norm(list, prefix, "q_norm", mixer->q_norm.kind,
                     qk_norm_size(mixer, mixer->num_qk_heads, head_dim));
    random_list_norm(list, prefix, "k_norm", mixer->k_norm.kind,
                     qk_norm_size(mixer, mixer_key_heads(mixer), head_dim));
}

/* "prefix.name", or the name alone when the prefix is empty. */
static const char *below(char full[WEIGHT_NAME_SIZE], const char *prefix, const char *name)
{
    return weights_name(full, "%s%s%s", prefix, *prefix ? "." : "", name);
}

/* A norm of the residual stream. */
static int bind_norm(struct weights *weights, const struct config *config, const char *prefix,
                     const struct norm_config *named, struct norm *norm, struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    if (named->kind == NORM_NONE)
        return 0;
    *norm = (struct norm){
        .kind = named->kind, .eps = config->norm_eps, .plus_one = config->norm_plus_one};
    return weights_norm(weights, below(full, prefix, named->name), config->hidden_size, norm, err);
}

static int bind_table(const struct model *model, struct weights *weights, const char *prefix,
                      const char *name, int64_t rows, struct matrix *table, struct error *err)
{
    char full[WEIGHT_NAME_SIZE], tensor[WEIGHT_NAME_SIZE];
    return weights_matrix(weights, weights_name(tensor, "%s.weight", below(full, prefix, name)),
                          rows, model->hidden_size, table, err);
}

/* A mixer as the configuration says; a pair's second part goes into *second. */
static void configure_mixer(const struct config *config, const struct mixer_config *own,
                            struct mixer *mixer, struct mixer *second)
{
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
        if (part->num_kv_heads == 0)
            part->num_kv_heads = part->num_heads;
        if (part->num_qk_heads == 0)
            part->num_qk_heads = part->num_heads;
    }
}

/* What binds a layer's branches. */
struct binder {
    const struct config *config;
    struct weights *weights;
    const struct block_names *names;
    int (*bind_mixer)(const struct block_mixer *, struct error *);
    int layer;
    char prefix[48]; /* of the layer */
};

static int bind_branch_mixer(const struct binder *b, const struct branch_config *config,
                             struct branch *branch, struct error *err)
{
    const struct mixer_config *mixers = b->config->mixers, *own = &mixers[config->mixer];
    struct mixer *mixer = arena_alloc(b->weights->arena, own->is_pair ? 2 : 1, sizeof *mixer, err);
    if (!mixer)
        return -1;
    branch->mixer = mixer;
    configure_mixer(b->config, own, mixer, mixer + 1);
    struct block_mixer block = {
        .weights = b->weights,
        .config = b->config,
        .layer = b->layer,
        .rope = own->is_pair ? &mixers[own->parts[0]].rope : &own->rope,
        .second_rope = own->is_pair ? &mixers[own->parts[1]].rope : NULL,
        .mixer = mixer,
    };
    snprintf(block.prefix, sizeof block.prefix, "%s.%s", b->prefix, config->name);
    return b->bind_mixer(&block, err);
}

/* x + (x of the token before - x) mu, as a convolution. */
static int bind_shift(const struct binder *b, const char *name, struct convolution *shift,
                      struct error *err)
{
    char full[WEIGHT_NAME_SIZE];
    int64_t size = b->config->hidden_size;
    const float *mu;
    float *weight = arena_alloc(b->weights->arena, (size_t)size, 2 * sizeof *weight, err);
    if (!weight ||
        weights_floats(b->weights, below(full, b->prefix, name), 1, &size, &mu, err) != 0)
        return -1;
    for (int64_t i = 0; i < size; i++) {
        weight[2 * i] = mu[i];
        weight[2 * i + 1] = 1 - mu[i];
    }
    *shift = (struct convolution){.width = 2, .weight = weight};
    return 0;
}

static int bind_branch(const struct binder *b, const struct branch_config *config,
                       struct branch *branch, struct error *err)
{
    branch->scale = config->scale;
    if (bind_norm(b->weights, b->config, b->prefix, &config->pre, &branch->pre, err) != 0 ||
        (config->shift && bind_shift(b, config->shift, &branch->shift, err) != 0))
        return -1;
    if (bind_norm(b->weights, b->config, b->prefix, &config->post, &branch->post, err) != 0)
        return -1;
    if (config->mixer >= 0)
        return bind_branch_mixer(b, config, branch, err);
    branch->mlp = arena_alloc(b->weights->arena, 1, sizeof *branch->mlp, err);
    if (!branch->mlp)
        return -1;
    const struct blocks_mlp place = {b->weights, b->config, b->names, b->prefix};
    return blocks_mlp_bind(&place, config, branch->mlp, err);
}

static int bind_block(const struct binder *b, const struct block_config *config,
                      struct block *block, struct error *err)
{
    block->alpha = config->alpha;
    block->beta = config->beta;
    block->num_branches = config->num_branches;
    if (bind_norm(b->weights, b->config, b->prefix, &config->input, &block->input, err) != 0)
        return -1;
    for (int i = 0; i < block->num_branches; i++)
        if (bind_branch(b, &config->branches[i], &block->branches[i], err) != 0)
            return -1;
    return bind_norm(b->weights, b->config, b->prefix, &config->post, &block->post, err);
}

static int bind_layer(struct binder *b, int i, struct layer *layer, struct error *err)
{
    const struct layer_config *kind = &b->config->kinds[b->config->layer_kinds[i]];
    const char *root = b->names->root;
    b->layer = i;
    snprintf(b->prefix, sizeof b->prefix, "%s%slayers.%d", root, *root ? "." : "", i);
    layer->name = kind->name;
    layer->num_blocks = kind->num_blocks;
    layer->blocks =
        arena_alloc(b->weights->arena, (size_t)kind->num_blocks, sizeof *layer->blocks, err);
    if (!layer->blocks)
        return -1;
    for (int j = 0; j < kind->num_blocks; j++)
        if (bind_block(b, &kind->blocks[j], &layer->blocks[j], err) != 0)
            return -1;
    return 0;
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

/* What makes the inputs of layers. */
static int bind_layer_inputs(struct model *model, const struct config *config,
                             struct weights *weights, const struct block_names *names,
                             struct error *err)
{
    char full[WEIGHT_NAME_SIZE], tensor[WEIGHT_NAME_SIZE];
    const int64_t width = config->num_layers * config->layer_size;
    model->layer_size = (int)config->layer_size;
    model->layer_norm = (struct norm){.kind = config->norm_kind, .eps = config->norm_eps};
    below(full, names->root, names->layer_embeddings);
    if (weights_matrix(weights, weights_name(tensor, "%s.weight", full), config->layer_vocab, width,
                       &model->layer_embeddings, err) != 0 ||
        weights_linear(weights, below(full, names->root, names->layer_proj), width,
                       model->hidden_size, WEIGHT_NO_BIAS, &model->layer_proj, err) != 0)
        return -1;
    return weights_norm(weights, below(full, names->root, names->layer_norm), config->layer_size,
                        &model->layer_norm, err);
}

/* What stands before the layers and behind them. */
static int bind_ends(struct model *model, const struct config *config, struct weights *weights,
                     const struct block_names *names, struct error *err)
{
    const struct norm_config before = {config->embedding_norm ? config->norm_kind : NORM_NONE,
                                       names->embedding_norm};
    const struct norm_config after = {config->norm_kind, names->final_norm};
    if (bind_table(model, weights, names->root, names->embeddings, model->vocab_size,
                   &model->embeddings, err) != 0)
        return -1;
    if (config->position_embedding == POSITION_EMBEDDING_LEARNED &&
        bind_table(model, weights, names->root, names->position_embeddings,
                   config->max_position_embeddings, &model->position_embeddings, err) != 0)
        return -1;
    if (config->layer_size > 0 && bind_layer_inputs(model, config, weights, names, err) != 0)
        return -1;
    if (bind_norm(weights, config, names->root, &before, &model->embedding_norm, err) != 0 ||
        bind_norm(weights, config, names->root, &after, &model->final_norm, err) != 0)
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
    struct binder binder = {config, weights, &found, bind_mixer, 0, ""};
    for (int i = 0; i < model->num_layers; i++)
        if (bind_layer(&binder, i, &model->layers[i], err) != 0)
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

static void random_norm(struct random_list *list, const char *prefix,
                        const struct norm_config *norm)
{
    random_list_norm(list, prefix, norm->name, norm->kind, list->config->hidden_size);
}

/* first: the norm before it is no other branch's. */
static void random_branch(struct random_list *list, const struct block_names *names,
                          const char *layer, const struct branch_config *branch, bool first,
                          void (*list_mixer)(struct random_list *, const char *,
                                             const struct mixer *))
{
    const struct config *config = list->config;
    const int64_t hidden = config->hidden_size;
    char prefix[WEIGHT_NAME_SIZE / 2];
    snprintf(prefix, sizeof prefix, "%s.%s", layer, branch->name);
    if (first)
        random_norm(list, layer, &branch->pre);
    if (branch->shift)
        random_list_vector(list, layer, branch->shift, hidden, 0.5, 0.2);
    if (branch->mixer >= 0) {
        struct mixer own, second;
        configure_mixer(config, &config->mixers[branch->mixer], &own, &second);
        list_mixer(list, prefix, &own);
        return;
    }
    blocks_mlp_random(list, names, layer, branch);
}

static void random_layer(struct random_list *list, const struct block_names *names, int i,
                         void (*list_mixer)(struct random_list *, const char *,
                                            const struct mixer *))
{
    const struct layer_config *kind = &list->config->kinds[list->config->layer_kinds[i]];
    char layer[48];
    snprintf(layer, sizeof layer, "%s.layers.%d", names->root, i);
    for (int j = 0; j < kind->num_blocks; j++) {
        const struct block_config *block = &kind->blocks[j];
        random_norm(list, layer, &block->input);
        for (int k = 0; k < block->num_branches; k++)
            random_branch(list, names, layer, &block->branches[k],
                          k == 0 || block->branches[k].pre.name != block->branches[0].pre.name,
                          list_mixer);
        random_norm(list, layer, &block->post);
    }
}

static void random_layer_inputs(struct random_list *list, const struct block_names *names)
{
    const struct config *config = list->config;
    const int64_t width = config->num_layers * config->layer_size;
    char full[WEIGHT_NAME_SIZE];
    random_list_matrix(list, below(full, names->root, names->layer_embeddings), config->layer_vocab,
                       width, 1);
    random_list_linear(list, names->root, names->layer_proj, width, config->hidden_size, 0);
    random_list_norm(list, names->root, names->layer_norm, config->norm_kind, config->layer_size);
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
    if (config->layer_size > 0)
        random_layer_inputs(list, names);
    for (int i = 0; i < (int)config->num_layers; i++)
        random_layer(list, names, i, list_mixer);
    random_list_norm(list, names->root, names->final_norm, config->norm_kind, config->hidden_size);
    if (!config->tied)
        random_list_matrix(list, names->lm_head, config->vocab_size, config->hidden_size,
                           1 / sqrt((double)config->hidden_size));
}
