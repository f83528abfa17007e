/* SPDX-License-Identifier: Apache-2.0 */
/* Positions that turn q and k (rope, LRPE types 1 to 3, spe): angles, bases, permutations by
 * cycles, codes. */
#include "engine/mixers/mixer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool mixer_position_rotates(const struct mixer *config)
{
    return position_does(config->position.kind, TURNS);
}

static int angles_of_head(const struct position *position, int dim)
{
    switch (position->kind) {
    case POSITION_LRPE_UNITARY:
        return dim;
    case POSITION_SPE:
        return dim * position->sines;
    default:
        return position->rotary_dims / 2;
    }
}

/* Angle i, by position, of all heads where each has its own. */
static double theta_of(const struct position *position, int dim, int i)
{
    if (position->kind == POSITION_SPE) /* 2 pi f, f = sigmoid(freqs) / 2 */
        return M_PI / (1.0 + exp(-(double)position->freqs[i]));
    if (position->theta != NULL)
        return (double)position->theta[i];
    if (position->frequencies != NULL)
        return position->frequencies[i];
    double base = position->kind == POSITION_ROPE ? position->base : 10000.0;
    int size = position_does(position->kind, DOUBLES) ? dim : position->rotary_dims;
    return pow(base, -2.0 * i / size);
}

/* Angles per position: rope's are shared by the heads, those of others where the heads' are equal.
 */
static void emit_angles(const struct mixer_build *mixer, struct ops_positions *ops)
{
    const struct position *position = &mixer->config->position;
    const int heads = mixer->config->num_heads, count = angles_of_head(position, ops->dim);
    if (count == 0)
        return;
    bool shared = true;
    const float *own = position->kind == POSITION_SPE ? position->freqs : position->theta;
    if (own != NULL)
        for (int h = 1; h < heads && shared; h++)
            shared =
                memcmp(own, own + (size_t)h * (size_t)count, (size_t)count * sizeof(float)) == 0;
    const int total = shared ? count : heads * count;
    double *theta = malloc((size_t)total * sizeof *theta);
    if (theta == NULL) {
        emitter_no_memory(mixer->emitter, "positions");
        return;
    }
    for (int i = 0; i < total; i++)
        theta[i] = theta_of(position, ops->dim, i);
    ops->angles_per_head = shared ? 0 : count;
    emitter_share_angles(mixer->emitter, theta, total, position->factor, &ops->cosines,
                         &ops->sines);
    free(theta);
}

/* Splits a permutation into its cycles, so that applying it t times is one look-up for any t. */
static void upload_cycles(const struct mixer_build *mixer, struct ops_positions *ops)
{
    const int32_t *permutation = mixer->config->position.permutation;
    const size_t n = (size_t)ops->dim;
    int32_t *arrays = malloc(4 * n * sizeof *arrays);
    if (arrays == NULL) {
        emitter_no_memory(mixer->emitter, "permutation");
        return;
    }
    int32_t *cycle = arrays, *start = arrays + n, *length = arrays + 2 * n, *place = arrays + 3 * n;
    memset(length, 0, n * sizeof *length);
    int32_t used = 0;
    for (int32_t j = 0; j < ops->dim; j++) {
        if (length[j] != 0)
            continue;
        int32_t first = used, element = j;
        do {
            start[element] = first;
            place[element] = used - first;
            length[element] = -1; /* seen; its length is known at the end */
            cycle[used++] = element;
            element = permutation[element];
        } while (element != j);
        for (int32_t i = first; i < used; i++)
            length[cycle[i]] = used - first;
    }
    const int32_t *base = emitter_upload(mixer->emitter, arrays, 4 * n * sizeof *arrays);
    free(arrays);
    if (base == NULL)
        return;
    ops->cycle = base;
    ops->start = base + n;
    ops->length = base + 2 * n;
    ops->place = base + 3 * n;
}

/* spe's codes count as weights. */
static void upload_codes(const struct mixer_build *mixer, struct ops_positions *ops)
{
    const struct mixer *config = mixer->config;
    const struct position *position = &config->position;
    const size_t rows = (size_t)config->num_heads * (size_t)config->features *
                        (size_t)(2 * position->sines + position->gated);
    const size_t bytes = rows * (size_t)config->features_positioned * sizeof(float);
    ops->code_q = emitter_upload_weights(mixer->emitter, position->code_q, bytes);
    ops->code_k = emitter_upload_weights(mixer->emitter, position->code_k, bytes);
    ops->num_sines = position->sines;
    ops->gated = position->gated;
    ops->outputs = config->features_positioned;
}

struct ops_positions mixer_position_prepare(const struct mixer_build *mixer, int dim)
{
    const struct position *position = &mixer->config->position;
    const bool rope = position->kind == POSITION_ROPE;
    struct ops_positions ops = {
        .kind = position->kind,
        .basis = rope ? BASIS_IDENTITY : position->basis,
        .pairing = rope ? position->pairing : ROPE_PAIRING_ADJACENT,
        .dim = dim,
        .rotary_dims = position->rotary_dims,
    };
    if (ops.basis == BASIS_HOUSEHOLDER)
        ops.householder =
            emitter_upload(mixer->emitter, position->householder, (size_t)dim * sizeof(float));
    if (position->kind == POSITION_LRPE_PERMUTATION) {
        upload_cycles(mixer, &ops);
        return ops;
    }
    if (position->kind == POSITION_SPE)
        upload_codes(mixer, &ops);
    emit_angles(mixer, &ops);
    return ops;
}

void mixer_position_emit(const struct mixer_build *mixer, const struct ops_positions *position,
                         struct rows *q, struct rows *k)
{
    struct ops_positions call = *position;
    const int heads = mixer->config->num_qk_heads;
    const int key_heads = k->data != NULL ? mixer_key_heads(mixer->config) : 0;
    const int64_t out_dim = position_does(call.kind, DOUBLES) ? 2 * call.dim : call.dim;
    assert(key_heads == 0 || k->data == q->data + heads * call.dim); /* as they are packed */
    call.num_heads = heads;
    call.num_kv_heads = key_heads;
    call.x = *q;
    call.out = emitter_rows(mixer->emitter, (heads + key_heads) * out_dim);
    emitter_positions(mixer->emitter, &call);
    *q = call.out;
    if (key_heads > 0)
        *k = rows_from(call.out, heads * out_dim);
}
