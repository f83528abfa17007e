/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cost.h"

#include "engine/ops/ops.h"
#include "engine/state_layout.h"

/* Keys that the queries at positions [from, from + count) of a layer see, all together. */
static double keys_seen(const struct mixer *mixer, double from, double count)
{
    double window = mixer->window_size, end = from + count;
    if (mixer->window == WINDOW_FULL)
        return (end * (end + 1) - from * (from + 1)) / 2;
    double seen = 0;
    for (double p = from; p < end; p++)
        seen += mixer->window == WINDOW_BLOCK ? p - window * (double)(int64_t)(p / window) + 1
                : p + 1 < window              ? p + 1
                                              : window;
    return seen;
}

/* Vectors of segments that they see beside these. */
static double vectors_seen(const struct mixer *mixer, double from, double count)
{
    double seen = 0;
    for (double p = from; mixer->window == WINDOW_LONG_SHORT && p < from + count; p++)
        seen += (double)((int64_t)p / mixer->segment_length) * mixer->segment_rank;
    return seen;
}

/* Of the sums of the segment in hand. */
static double segment_sums_bytes(const struct mixer *m)
{
    return (double)(2 + m->head_dim + m->value_dim) * m->segment_rank * m->num_kv_heads *
           sizeof(float);
}

static double elements(const struct matrix *matrix)
{
    return (double)matrix->rows * (double)matrix->cols;
}

/* Of all matrices that a token is multiplied with in a branch. */
static double branch_elements(const struct branch *branch)
{
    const struct matrix *matrix;
    double sum = 0;
    for (size_t i = 0; (matrix = branch_matrix(branch, i, NULL)) != NULL; i++)
        sum += elements(matrix);
    for (const struct mixer *m = branch->mixer; m != NULL; m = m->second) {
        const double heads = m->num_heads;
        if (m->position.kind == POSITION_SPE)
            sum += 2 * heads * m->features * (2 * m->position.sines + m->position.gated) *
                   m->features_positioned;
    }
    return sum;
}

/* Of one token's recurrence: s <- a (f * s), s <- s + (b v - delta (s.phi_k)) phi_k, s.phi_q. */
static double recurrence_operations(const struct mixer *m)
{
    const int does = gate_does(m->gate);
    const int per_element = 4 + (does & DECAYS_ROWS ? 1 : 0) + (does & DECAYS_FEATURES ? 1 : 0) +
                            (does & ERASES ? 2 : 0);
    double rows = m->value_dim + (m->sum_norm ? 1 : 0), skip = m->skip ? 2.0 * m->value_dim : 0;
    return (per_element * rows * m->features_positioned + skip) * m->num_heads;
}

static double conv_operations(const struct mixer *m)
{
    return 2.0 * m->conv.width * (double)(m->conv.width > 0 ? mixer_conv_channels(m) : 0);
}

/* Of its rows in the slot all are read and one is written. */
static double conv_bytes(const struct mixer *m)
{
    return m->conv.width > 0 ? (double)ops_conv_bytes(m->conv.width + 1, mixer_conv_channels(m))
                             : 0;
}

static double recurrent_bytes(const struct mixer *m)
{
    const int features = ops_state_features(m->features_positioned, m->chunk_size);
    return (double)ops_recurrent_bytes(m->value_dim, m->sum_norm, features) * m->num_heads;
}

/* A window's keys and values lie as f32 in the slot. */
static double ring_bytes(const struct mixer *m)
{
    return (double)(m->features_positioned + m->value_dim) * m->num_kv_heads * sizeof(float);
}

/* Of a text's tokens in one mixer. True: its keys are in pages, whose bytes are not added. */
static bool add_mixer(struct cost *text, const struct mixer *m, double depth, double tokens)
{
    if (m->kind == MIXER_CONV) {
        text->operations += (conv_operations(m) + 2.0 * m->value_dim) * tokens;
        text->bytes += conv_bytes(m) * tokens;
        return false;
    }
    if (m->kind == MIXER_LINEAR) {
        text->operations += (recurrence_operations(m) + conv_operations(m)) * tokens;
        /* of two halves the finished one is only read */
        text->bytes +=
            ((m->chunk_size > 0 ? 1.5 : 2) * recurrent_bytes(m) + conv_bytes(m)) * tokens;
        return false;
    }
    double seen = keys_seen(m, depth, tokens), vectors = vectors_seen(m, depth, tokens);
    text->operations += 2.0 * (m->features_positioned + m->value_dim) * m->num_heads *
                        (seen + vectors + m->segment_rank * tokens);
    if (m->window != WINDOW_FULL)
        text->bytes += ring_bytes(m) * (seen + tokens) + 2 * segment_sums_bytes(m) * tokens;
    return m->window == WINDOW_FULL || m->window == WINDOW_LONG_SHORT;
}

/* The same in a layer, with its products. */
static bool add_layer(struct cost *text, const struct layer *layer, double depth, double tokens)
{
    const struct branch *branch;
    bool pages = false;
    for (int b = 0; (branch = layer_branch(layer, b)) != NULL; b++) {
        text->operations += 2 * branch_elements(branch) * tokens;
        for (const struct mixer *m = branch->mixer; m != NULL; m = m->second)
            pages |= add_mixer(text, m, depth, tokens);
    }
    return pages;
}

struct cost cost_of(const struct model *model, const struct engine_info *info,
                    const struct cost_texts *texts)
{
    double tokens = texts->tokens, depth = texts->depth, logits = texts->generates ? tokens : 1;
    struct cost text = {.operations = 2 * elements(&model->lm_head) * logits};
    bool pages = false;
    for (int i = 0; i < model->num_layers; i++)
        pages |= add_layer(&text, &model->layers[i], depth, tokens);
    if (pages) {
        const struct mixer full = {.window = WINDOW_FULL};
        text.bytes += (double)info->kv_bytes_per_token * (keys_seen(&full, depth, tokens) + tokens);
    }
    struct cost need = {.operations = text.operations * texts->batch};
    if (texts->generates) {
        need.weight_bytes = (double)info->weights_bytes * tokens;
        need.bytes = need.weight_bytes + text.bytes * texts->batch;
    }
    return need;
}

/* A matrix as the engine keeps it, without what pads it. */
static double weight_bytes(const struct matrix *matrix, enum weight_format format)
{
    const int bytes = weight_format_bytes(format);
    return bytes == 0 ? (double)model_matrix_bytes(matrix)
                      : elements(matrix) / weight_format_block(format) * bytes;
}

struct cost_layer cost_of_layer(const struct engine *engine, int layer)
{
    const struct layer *own = &engine_model(engine)->layers[layer];
    const struct state_layout *layout = engine_state_layout(engine);
    struct cost first = {0};
    struct cost_layer cost = {0};
    const struct branch *branch;
    add_layer(&first, own, 0, 1);
    cost.operations = first.operations;
    for (int b = 0; (branch = layer_branch(own, b)) != NULL; b++) {
        const struct matrix *matrix;
        enum matrix_use use;
        for (size_t i = 0; (matrix = branch_matrix(branch, i, &use)) != NULL; i++)
            if (use != MATRIX_OF_HEADS)
                cost.weight_bytes += weight_bytes(matrix, engine_info(engine)->weights);
    }
    for (int i = 0; i < layout->num_parts; i++) {
        const struct state_part *part = &layout->parts[i];
        const double bytes = (double)part->head_bytes * part->heads;
        if (part->layer != layer)
            continue;
        if (state_part_pages(part))
            cost.kv_bytes_per_token += bytes / OPS_TILE;
        else
            cost.state_bytes += bytes;
    }
    return cost;
}

int64_t cost_longest_text(const struct engine *engine, size_t kept)
{
    const struct engine_info *info = engine_info(engine);
    if (info->kv_bytes_per_token == 0)
        return 0;
    int64_t low = 0, high = (int64_t)(info->state_memory_bytes / info->kv_bytes_per_token) + 1;
    if (high / info->kv_page_tokens >= info->max_step_pages)
        high = info->max_step_pages * info->kv_page_tokens + 1;
    while (low + 1 < high) {
        int64_t middle = low + (high - low) / 2;
        if (engine_state_bytes(engine, middle) <= info->state_memory_bytes - kept)
            low = middle;
        else
            high = middle;
    }
    return low > 0 ? low : 1;
}
