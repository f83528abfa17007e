/* SPDX-License-Identifier: Apache-2.0 */
/* Long-short windows (Transformer-LS): norms of the keys and values, and the vectors of segments.
 */
#include "engine/mixers/mixer.h"

/* Lays the segments into slot and pages. */
static void place(const struct mixer_build *mixer, struct ops_segments *ops)
{
    struct state_part part = {.heads = ops->num_heads,
                              .rows = ops->value_dim,
                              .features = ops->key_dim,
                              .window = ops->length};
    part.kind = STATE_PART_SUMS;
    part.head_bytes = ops_segment_sums_bytes(ops);
    ops->sums_offset = emitter_state(mixer->emitter, part);
    part.kind = STATE_PART_SEGMENTS;
    part.head_bytes = ops_segment_bytes(ops);
    part.places = ops_segment_page(ops);
    ops->page_offset = emitter_state(mixer->emitter, part);
}

/* A norm of parts of x, each all heads' keys or values. */
static struct ops_norm norm_of(const struct mixer_build *mixer, const struct norm *norm)
{
    const int size = mixer->config->num_kv_heads * mixer->config->head_dim;
    const struct mixer_scale scale =
        mixer_scale_upload(mixer->emitter, norm->weight, norm->bias, (size_t)size);
    return (struct ops_norm){.kind = norm->kind,
                             .eps = norm->eps,
                             .weight = scale.weight,
                             .bias = scale.bias,
                             .groups = 1,
                             .size = size};
}

struct ops_segments mixer_segments_emit(const struct mixer_build *mixer, struct rows *k,
                                        struct rows *v)
{
    struct emitter *emitter = mixer->emitter;
    const struct mixer *config = mixer->config;
    struct ops_norm segment = norm_of(mixer, &config->segment_norm);
    struct ops_norm window = norm_of(mixer, &config->window_norm);
    struct ops_segments call = {
        .num_heads = config->num_kv_heads,
        .key_dim = config->head_dim,
        .value_dim = config->value_dim,
        .length = config->segment_length,
        .rank = config->segment_rank,
        .kv = emitter->options->kv,
        .scores = mixer_project(mixer, mixer->at.segment_proj),
        .k = *k,
        .v = *v,
        .vectors = emitter_rows(emitter, 2 * (int64_t)segment.size * config->segment_rank),
    };
    place(mixer, &call);
    emitter_segments(emitter, &call);
    /* of rows that end no segment it norms whatever is there, which nobody reads */
    segment.groups = 2 * config->segment_rank;
    segment.x = segment.y = call.vectors;
    emitter_norm(emitter, &segment);
    const struct rows normed = emitter_rows(emitter, 2 * (int64_t)window.size);
    window.x = *k;
    window.y = *k = normed;
    emitter_norm(emitter, &window);
    window.x = *v;
    window.y = *v = rows_from(normed, window.size);
    emitter_norm(emitter, &window);
    return call;
}
