/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cost.h"

#include <math.h>

static double all_keys(double from, double count)
{
    const double end = from + count;
    return (end * (end + 1) - from * (from + 1)) / 2;
}

/* Keys that the queries at positions [from, from + count) see in a window, all together. */
static double keys_seen(enum window_kind kind, double window, double from, double count)
{
    double seen = 0;
    if (window_has(kind, KEEPS_ALL_KEYS))
        return all_keys(from, count);
    for (double p = from; p < from + count; p++)
        seen += kind == WINDOW_BLOCK ? p - window * (double)(int64_t)(p / window) + 1
                : p + 1 < window     ? p + 1
                                     : window;
    return seen;
}

/* Reads those of the pages that all positions before have, and writes its own. */
static double pages_bytes(double bytes_per_token, double from, double count)
{
    return bytes_per_token * (all_keys(from, count) + count);
}

/* Vectors of segments that they see beside these. */
static double vectors_seen(const struct ops_segments *segments, double from, double count)
{
    double seen = 0;
    for (double p = from; p < from + count; p++)
        seen += (double)ops_segments_before(segments, (int64_t)p);
    return seen;
}

/* The part of its weight that `rows` rows meet: of a routed product the experts that they choose,
 * if each chooses at random. */
static double met(const struct operation *operation, double rows)
{
    const double left = 1 - (double)operation->matmul.chosen / operation->weight->heads;
    return operation->matmul.chosen > 0 ? 1 - pow(left, rows) : 1;
}

/* Elements that a token meets. */
static double elements(const struct operation *operation)
{
    const struct program_weight *weight = operation->weight;
    return (double)weight->rows * (double)weight->cols * met(operation, 1);
}

double cost_weight_bytes(const struct program *program, enum weight_format format,
                         const struct cost_texts *texts)
{
    double bytes = (double)program->weights_bytes[format];
    for (int i = 0; i < program->num_operations; i++) {
        const struct operation *operation = &program->operations[i];
        if (operation->kind != OPERATION_MATMUL || operation->matmul.chosen == 0)
            continue;
        const double part = texts->experts > 0 ? texts->experts : met(operation, texts->batch);
        bytes -= (double)program->ops->weight_bytes(operation->weight->packed, format) * (1 - part);
    }
    return bytes;
}

int cost_experts(const struct program *program)
{
    int count = 0;
    for (int i = 0; i < program->num_operations; i++)
        if (program->operations[i].kind == OPERATION_ROUTE)
            count += program->operations[i].route.num_experts;
    return count;
}

/* spe: the codes of q and k are matrices. */
static double codes_elements(const struct ops_recurrence *a, const struct ops_positions *after)
{
    const double heads = a->num_qk_heads + ops_recurrence_key_heads(a);
    return a->phi.after == NULL
               ? 0
               : heads * after->dim * (2 * after->num_sines + after->gated) * after->outputs;
}

static bool is_there(const struct ops_factor *factor)
{
    return factor->u.data != NULL;
}

/* For one token s <- a (f * s), s <- s + (b v - delta (s.phi_k)) phi_k, s.phi_q; or instead of the
 * delta s.erase, and - (s.erase) write. */
static void add_recurrence(struct cost *text, const struct operation *operation, double tokens)
{
    const struct ops_recurrence *a = &operation->recurrence;
    const int per_element = 4 + is_there(&a->row_decay) + is_there(&a->feature_decay) +
                            2 * is_there(&a->delta) + (a->erase.data != NULL ? 4 : 0);
    const double rows = a->value_dim + a->sum_norm, skip = a->skip ? 2.0 * a->value_dim : 0;
    const int features = ops_state_features(a->features, a->chunk_size);
    const double bytes =
        (double)ops_recurrent_bytes(a->value_dim, a->sum_norm, features) * a->num_heads;
    text->operations += ((per_element * rows * a->features + skip) * a->num_heads +
                         2 * codes_elements(a, &operation->after)) *
                        tokens;
    /* of two halves the finished one is only read */
    text->bytes += (a->chunk_size > 0 ? 1.5 : 2) * bytes * tokens;
}

/* Of its rows in the slot all are read and one is written. */
static void add_conv(struct cost *text, const struct ops_conv *conv, double tokens)
{
    text->operations += 2.0 * conv->width * conv->channels * tokens;
    text->bytes += (double)ops_conv_bytes(conv->width + 1, conv->channels) * tokens;
}

static void add_attention(struct cost *text, const struct operation *operation, double depth,
                          double tokens)
{
    const struct ops_attention *a = &operation->attention;
    const struct ops_segments *segments = a->segments != NULL ? &operation->vectors : NULL;
    const double seen = keys_seen(a->window, a->window_size, depth, tokens);
    const double vectors = segments ? vectors_seen(segments, depth, tokens) : 0;
    text->operations += 2.0 * (a->key_dim + a->value_dim) * a->num_heads * (seen + vectors);
    if (window_has(a->window, KEEPS_ALL_KEYS)) {
        const double tile = (double)ops_tile_bytes(a->key_dim, ops_stored_values(a), a->kv);
        text->bytes += pages_bytes(tile * a->num_kv_heads / OPS_TILE, depth, tokens);
        return;
    }
    /* a window's keys and values lie as f32 in the slot */
    text->bytes +=
        (double)(a->key_dim + a->value_dim) * a->num_kv_heads * sizeof(float) * (seen + tokens);
    if (segments)
        text->bytes += pages_bytes(
            (double)ops_segment_bytes(segments) * segments->num_heads / OPS_TILE, depth, tokens);
}

/* The sums of the segment in hand, which are read and written. */
static void add_segments(struct cost *text, const struct ops_segments *segments, double tokens)
{
    text->operations += 2.0 * (segments->key_dim + segments->value_dim) * segments->num_heads *
                        segments->rank * tokens;
    text->bytes += 2 * (double)ops_segment_sums_bytes(segments) * segments->num_heads * tokens;
}

/* Of `tokens` more tokens of a text, of which `logits` want logits. */
static void add_operation(struct cost *text, const struct operation *operation, double depth,
                          double tokens, double logits)
{
    const double rows = operation->when == WHEN_ALWAYS ? tokens : logits;
    if (operation->when == WHEN_ALL_LOGITS || /* instead of one that counts */
        operation->when == WHEN_HIDDEN)
        return;
    switch (operation->kind) {
    case OPERATION_MATMUL:
        text->operations += 2 * elements(operation) * rows;
        break;
    case OPERATION_CONV:
        add_conv(text, &operation->conv, rows);
        break;
    case OPERATION_RECURRENCE:
        add_recurrence(text, operation, rows);
        break;
    case OPERATION_SEGMENTS:
        add_segments(text, &operation->segments, rows);
        break;
    case OPERATION_ATTENTION:
        add_attention(text, operation, depth, rows);
        break;
    default: /* a number is read, computed with and written: it costs nothing beside these */
        break;
    }
}

struct cost cost_of(const struct program *program, const struct cost_texts *texts)
{
    const double tokens = texts->tokens, logits = texts->generates ? tokens : 1;
    struct cost text = {0}, need = {0};
    for (int i = 0; i < program->num_operations; i++)
        add_operation(&text, &program->operations[i], texts->depth, tokens, logits);
    need.operations = text.operations * texts->batch;
    if (texts->generates) {
        need.weight_bytes = cost_weight_bytes(program, WEIGHTS_AUTO, texts) * tokens;
        need.bytes = need.weight_bytes + text.bytes * texts->batch;
    }
    return need;
}

struct cost cost_of_operation(const struct operation *operation)
{
    struct cost cost = {0};
    add_operation(&cost, operation, 0, 1, 1);
    return cost;
}

struct cost_layer cost_of_layer(const struct program *program, int layer)
{
    const struct state_layout *layout = &program->layout;
    struct cost_layer cost = {0};
    for (int i = 0; i < program->num_operations; i++) {
        const struct operation *operation = &program->operations[i];
        if (operation->layer != layer)
            continue;
        cost.operations += cost_of_operation(operation).operations;
        if (operation->weight != NULL && !operation->weight->of_heads)
            cost.weight_bytes += operation->weight->bytes;
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
