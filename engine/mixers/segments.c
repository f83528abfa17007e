/* SPDX-License-Identifier: Apache-2.0 */
/* Long-short windows (Transformer-LS): norms of the keys and values, and the vectors of segments.
 */
#include "engine/mixers/mixer.h"

#include <stdlib.h>

struct mixer_segments {
    struct ops_segments ops;            /* without the arrays of the step */
    struct mixer_scale window, segment; /* of the norms */
};

static int place(struct mixer_segments *segments, struct mixer_context *context, struct error *err)
{
    struct ops_segments *ops = &segments->ops;
    struct state_part part = {.layer = context->layer,
                              .heads = ops->num_heads,
                              .rows = ops->value_dim,
                              .features = ops->key_dim,
                              .window = ops->length};
    part.kind = STATE_PART_SUMS;
    part.head_bytes = ops_segment_sums_bytes(ops);
    if (state_layout_add(&context->layout, part, &ops->sums_offset, err) != 0)
        return -1;
    part.kind = STATE_PART_SEGMENTS;
    part.head_bytes = ops_segment_bytes(ops);
    part.places = ops_segment_page(ops);
    return state_layout_add(&context->layout, part, &ops->page_offset, err);
}

int mixer_segments_create(struct mixer_layer *layer, struct mixer_context *context,
                          struct error *err)
{
    const struct mixer *config = layer->config;
    const struct norm *window = &config->window_norm, *segment = &config->segment_norm;
    size_t size = (size_t)config->num_kv_heads * (size_t)config->head_dim;
    struct mixer_segments *segments = calloc(1, sizeof *segments);
    if (segments == NULL)
        return error_set(err, ERROR_NO_MEMORY, "segments: no memory");
    layer->segments = segments;
    segments->ops = (struct ops_segments){
        .num_heads = config->num_kv_heads,
        .key_dim = config->head_dim,
        .value_dim = config->value_dim,
        .length = config->segment_length,
        .rank = config->segment_rank,
        .kv = context->layout.kv,
    };
    mixer_widen(&context->widths.vectors, 2 * (int64_t)size * config->segment_rank);
    if (place(segments, context, err) != 0 ||
        mixer_scale_upload(context, window->weight, window->bias, size, &segments->window, err) !=
            0)
        return -1;
    return mixer_scale_upload(context, segment->weight, segment->bias, size, &segments->segment,
                              err);
}

void mixer_segments_clear(struct mixer_layer *layer, const struct ops *ops, struct backend *backend)
{
    struct mixer_segments *segments = layer->segments;
    if (segments == NULL)
        return;
    mixer_scale_unload(&segments->window, ops, backend);
    mixer_scale_unload(&segments->segment, ops, backend);
    free(segments);
}

/* The same norm of `groups` parts of x, each all heads' keys or values. */
static void run_norm(const struct mixer_layer *layer, const struct norm *norm,
                     const struct mixer_scale *parameters, const struct ops *ops,
                     struct backend *backend, int num_rows, int groups, struct rows x,
                     struct rows y)
{
    ops->norm(backend, &(struct ops_norm){
                           .kind = norm->kind,
                           .eps = norm->eps,
                           .weight = parameters->weight,
                           .bias = parameters->bias,
                           .num_rows = num_rows,
                           .groups = groups,
                           .size = layer->config->num_kv_heads * layer->config->head_dim,
                           .x = x,
                           .y = y,
                       });
}

struct ops_segments mixer_segments_run(const struct mixer_layer *layer, const struct ops *ops,
                                       struct backend *backend, struct mixer_workspace *workspace,
                                       int num_rows, struct rows *k, struct rows *v)
{
    const struct mixer *config = layer->config;
    const struct mixer_segments *segments = layer->segments;
    struct ops_segments call = segments->ops;
    call.scores = mixer_columns(workspace->project, layer->at.segment_proj);
    call.k = *k;
    call.v = *v;
    call.vectors = workspace->vectors;
    ops->segments(backend, &call);
    /* of rows that end no segment it norms whatever is there, which nobody reads */
    run_norm(layer, &config->segment_norm, &segments->segment, ops, backend, num_rows,
             2 * config->segment_rank, workspace->vectors, workspace->vectors);
    const struct rows normed[2] = {
        workspace->turned,
        mixer_columns(workspace->turned, (int64_t)config->num_kv_heads * config->head_dim)};
    run_norm(layer, &config->window_norm, &segments->window, ops, backend, num_rows, 1, *k,
             normed[0]);
    run_norm(layer, &config->window_norm, &segments->window, ops, backend, num_rows, 1, *v,
             normed[1]);
    *k = normed[0];
    *v = normed[1];
    return call;
}
