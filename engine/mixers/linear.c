/* SPDX-License-Identifier: Apache-2.0 */
/* Linear mixers: what the one row recurrence needs of their feature map, gate and position. */
#include "engine/mixers/mixer.h"

struct ops_recurrence mixer_recurrence(const struct mixer_build *mixer,
                                       const struct mixer_inputs *inputs)
{
    const struct mixer *config = mixer->config;
    const int features = ops_state_features(config->features_positioned, config->chunk_size);
    const struct state_part part = {
        .kind = STATE_PART_RECURRENT,
        .heads = config->num_heads,
        .rows = config->value_dim + (config->sum_norm ? 1 : 0),
        .features = features,
        .head_bytes = ops_recurrent_bytes(config->value_dim, config->sum_norm, features),
    };
    return (struct ops_recurrence){
        .num_heads = config->num_heads,
        .num_qk_heads = config->num_qk_heads,
        .num_kv_heads = config->num_kv_heads,
        .value_dim = config->value_dim,
        .features = config->features_positioned,
        .sum_norm = config->sum_norm,
        .chunk_size = config->chunk_size,
        .q = inputs->q,
        .k = inputs->k,
        .v = inputs->v,
        .h = mixer->h,
        .state_offset = emitter_state(mixer->emitter, part),
    };
}

void mixer_linear_emit(const struct mixer_build *mixer)
{
    const struct mixer_inputs inputs = mixer_inputs_emit(mixer);
    struct ops_recurrence recurrence = mixer_recurrence(mixer, &inputs);
    struct ops_positions position;
    mixer_features_emit(mixer, &position, &recurrence);
    mixer_gate_emit(mixer, &recurrence);
    emitter_recurrence(mixer->emitter, &recurrence);
}
