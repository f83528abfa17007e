/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/operation.h"

struct visitor {
    operation_visit *visit;
    void *context;
};

static void visit(const struct visitor *visitor, struct rows *rows, int access)
{
    if (rows->data != NULL && rows->stride != 0)
        visitor->visit(visitor->context, rows, access);
}

static void visit_norm(const struct visitor *to, struct ops_norm *norm)
{
    visit(to, &norm->x, ACCESS_READS);
    visit(to, &norm->gate, ACCESS_READS);
    visit(to, &norm->y, ACCESS_WRITES);
}

static void visit_matmul(const struct visitor *to, struct operation *operation)
{
    struct ops_matmul *matmul = &operation->matmul;
    if (matmul->norm != NULL)
        visit_norm(to, &operation->first);
    visit(to, &matmul->x, ACCESS_READS);
    visit(to, &matmul->choices, ACCESS_READS);
    visit(to, &matmul->y, ACCESS_WRITES | (matmul->accumulate ? ACCESS_READS : 0));
}

static void visit_combine(const struct visitor *to, struct ops_combine *combine)
{
    visit(to, &combine->choices, ACCESS_READS);
    visit(to, &combine->x, ACCESS_READS);
    visit(to, &combine->out, ACCESS_WRITES | (combine->accumulate ? ACCESS_READS : 0));
}

static void visit_angles_of(const struct visitor *to, struct ops_positions *positions)
{
    visit(to, &positions->cosines, ACCESS_READS);
    visit(to, &positions->sines, ACCESS_READS);
}

static void visit_recurrence(const struct visitor *to, struct operation *operation)
{
    struct ops_recurrence *a = &operation->recurrence;
    struct ops_factor *const factors[] = {&a->row_decay, &a->feature_decay, &a->input_scale,
                                          &a->delta};
    struct rows *const read[] = {&a->q,       &a->k,     &a->v,    &a->phi.y_q,
                                 &a->phi.y_k, &a->erase, &a->write};
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        visit(to, read[i], ACCESS_READS);
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        visit(to, &factors[i]->u, ACCESS_READS);
        visit(to, &factors[i]->w, ACCESS_READS);
    }
    if (a->phi.before != NULL)
        visit_angles_of(to, &operation->before);
    if (a->phi.after != NULL)
        visit_angles_of(to, &operation->after);
    visit(to, &a->phi.maxima, ACCESS_WRITES); /* it writes them first */
    visit(to, &a->h, ACCESS_WRITES);
}

static void visit_segments(const struct visitor *to, struct ops_segments *segments, int vectors)
{
    visit(to, &segments->scores, ACCESS_READS);
    visit(to, &segments->k, ACCESS_READS);
    visit(to, &segments->v, ACCESS_READS);
    visit(to, &segments->vectors, vectors);
}

static void visit_attention(const struct visitor *to, struct operation *operation)
{
    struct ops_attention *attention = &operation->attention;
    visit(to, &attention->q, ACCESS_READS);
    visit(to, &attention->k, ACCESS_READS);
    visit(to, &attention->v, ACCESS_READS);
    if (attention->segments != NULL)
        visit_segments(to, &operation->vectors, ACCESS_READS);
    visit(to, &attention->h, ACCESS_WRITES);
}

void operation_each_rows(struct operation *operation, operation_visit *each, void *context)
{
    const struct visitor to = {each, context};
    switch (operation->kind) {
    case OPERATION_EMBED:
        visit(&to, &operation->embed.x, ACCESS_WRITES);
        break;
    case OPERATION_NORM:
        visit_norm(&to, &operation->norm);
        break;
    case OPERATION_MATMUL:
        visit_matmul(&to, operation);
        break;
    case OPERATION_ROUTE:
        visit(&to, &operation->route.scores, ACCESS_READS | ACCESS_WRITES);
        visit(&to, &operation->route.choices, ACCESS_WRITES);
        break;
    case OPERATION_COMBINE:
        visit_combine(&to, &operation->combine);
        break;
    case OPERATION_MAP:
        visit(&to, &operation->map.u, ACCESS_READS);
        visit(&to, &operation->map.w, ACCESS_READS);
        visit(&to, &operation->map.out, ACCESS_WRITES);
        break;
    case OPERATION_CONV:
        visit(&to, &operation->conv.x, ACCESS_READS | ACCESS_WRITES);
        break;
    case OPERATION_ANGLES:
        visit(&to, &operation->angles.cosines, ACCESS_WRITES);
        visit(&to, &operation->angles.sines, ACCESS_WRITES);
        break;
    case OPERATION_POSITIONS:
        visit_angles_of(&to, &operation->positions);
        visit(&to, &operation->positions.x, ACCESS_READS);
        visit(&to, &operation->positions.out, ACCESS_WRITES);
        break;
    case OPERATION_RECURRENCE:
        visit_recurrence(&to, operation);
        break;
    case OPERATION_SEGMENTS: /* rows that end no segment keep what is there */
        visit_segments(&to, &operation->segments, ACCESS_WRITES);
        break;
    case OPERATION_ATTENTION:
        visit_attention(&to, operation);
        break;
    case OPERATION_GATHER:
        visit(&to, &operation->gather.x, ACCESS_READS);
        visit(&to, &operation->gather.out, ACCESS_WRITES);
        break;
    }
}

static struct operation_region whole(size_t offset, size_t bytes)
{
    return (struct operation_region){.offset = offset, .bytes = bytes, .count = 1};
}

static struct operation_region ring(const struct ops_attention *a)
{
    const size_t tile = ops_tile_bytes(a->key_dim, a->value_dim, a->kv);
    const size_t tiles = ((size_t)a->window_size + OPS_TILE - 1) / OPS_TILE;
    return (struct operation_region){.offset = a->offset,
                                     .bytes = tile,
                                     .stride = tiles * tile,
                                     .count = a->num_kv_heads,
                                     .window = a->window_size};
}

void operation_find_regions(struct operation *operation)
{
    const struct ops_recurrence *recurrence = &operation->recurrence;
    struct operation_region *regions = operation->regions;
    int count = 0;
    switch (operation->kind) {
    case OPERATION_CONV:
        regions[count++] = whole(operation->conv.state_offset,
                                 ops_conv_bytes(operation->conv.width, operation->conv.channels));
        break;
    case OPERATION_RECURRENCE:
        regions[count++] =
            whole(recurrence->state_offset,
                  (size_t)recurrence->num_heads *
                      ops_recurrent_bytes(
                          recurrence->value_dim, recurrence->sum_norm,
                          ops_state_features(recurrence->features, recurrence->chunk_size)));
        if (formula_is_exponential(recurrence->phi.map))
            regions[count++] = whole(recurrence->phi.maxima_offset,
                                     (size_t)ops_recurrence_key_heads(recurrence) * sizeof(float));
        break;
    case OPERATION_SEGMENTS:
        regions[count++] = whole(operation->segments.sums_offset,
                                 (size_t)operation->segments.num_heads *
                                     ops_segment_sums_bytes(&operation->segments));
        break;
    case OPERATION_ATTENTION:
        if (!window_has(operation->attention.window, KEEPS_ALL_KEYS))
            regions[count++] = ring(&operation->attention);
        break;
    default:
        break;
    }
    operation->num_regions = count;
}

const char *operation_name(enum operation_kind kind)
{
#define OPERATION_NAME(kind, name, profile, rows) #name,
    static const char *const names[] = {OPERATIONS(OPERATION_NAME)};
#undef OPERATION_NAME
    return names[kind];
}
