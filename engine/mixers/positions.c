/* SPDX-License-Identifier: Apache-2.0 */
/* Positions that turn q and k (rope, LRPE types 1 to 3, spe): angles, bases, permutations by
 * cycles, codes. */
#include "engine/mixers/mixer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool mixer_position_rotates(const struct mixer_layer *layer)
{
    enum position_kind kind = layer->config->position.kind;
    return kind == POSITION_ROPE || kind == POSITION_LRPE_UNITARY ||
           kind == POSITION_LRPE_ORTHOGONAL || kind == POSITION_LRPE_PERMUTATION ||
           kind == POSITION_SPE;
}

/* Finds equal angles of another layer or uploads these; takes host. */
static int share_theta(struct mixer_context *context, double *host, int count, const double **out,
                       struct error *err)
{
    size_t bytes = (size_t)count * sizeof *host;
    for (int i = 0; i < context->num_thetas; i++)
        if (context->thetas[i].count == count &&
            memcmp(context->thetas[i].host, host, bytes) == 0) {
            free(host);
            *out = context->thetas[i].device;
            return 0;
        }
    struct mixer_theta *thetas =
        realloc(context->thetas, (size_t)(context->num_thetas + 1) * sizeof *thetas);
    void *device = NULL;
    if (thetas != NULL)
        context->thetas = thetas;
    if (thetas == NULL || context->ops->upload(context->backend, host, bytes, &device, err) != 0) {
        free(host);
        return error_set(err, ERROR_NO_MEMORY, "positions: no memory");
    }
    thetas[context->num_thetas++] = (struct mixer_theta){host, device, count};
    *out = device;
    return 0;
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
    int size = position->kind == POSITION_LRPE_UNITARY ? dim : position->rotary_dims;
    return pow(base, -2.0 * i / size);
}

/* Angles per position: rope's are shared by the heads, those of others where the heads' are equal.
 */
static int create_angles(struct mixer_layer *layer, struct mixer_context *context, int dim,
                         struct error *err)
{
    const struct position *position = &layer->config->position;
    int heads = layer->config->num_heads;
    int count = angles_of_head(position, dim);
    if (count == 0)
        return 0;
    bool shared = true;
    const float *own = position->kind == POSITION_SPE ? position->freqs : position->theta;
    if (own != NULL)
        for (int h = 1; h < heads && shared; h++)
            shared =
                memcmp(own, own + (size_t)h * (size_t)count, (size_t)count * sizeof(float)) == 0;
    int total = shared ? count : heads * count;
    double *theta = malloc((size_t)total * sizeof *theta);
    if (theta == NULL)
        return error_set(err, ERROR_NO_MEMORY, "positions: no memory");
    for (int i = 0; i < total; i++)
        theta[i] = theta_of(position, dim, i);
    layer->position.num_angles = total;
    layer->position.ops.angles_per_head = shared ? 0 : count;
    mixer_widen(&context->widths.angles, total);
    return share_theta(context, theta, total, &layer->position.theta, err);
}

/* Splits a permutation into its cycles, so that applying it t times is one look-up for any t. */
static int create_cycles(struct mixer_layer *layer, struct mixer_context *context, int dim,
                         struct error *err)
{
    const int32_t *permutation = layer->config->position.permutation;
    size_t n = (size_t)dim;
    int32_t *arrays = malloc(4 * n * sizeof *arrays);
    if (arrays == NULL)
        return error_set(err, ERROR_NO_MEMORY, "permutation: no memory");
    int32_t *cycle = arrays, *start = arrays + n, *length = arrays + 2 * n, *place = arrays + 3 * n;
    memset(length, 0, n * sizeof *length);
    int32_t used = 0;
    for (int32_t j = 0; j < dim; j++) {
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
    void *device = NULL;
    int result =
        context->ops->upload(context->backend, arrays, 4 * n * sizeof *arrays, &device, err);
    free(arrays);
    struct ops_positions *ops = &layer->position.ops;
    const int32_t *base = device;
    ops->cycle = base;
    if (result == 0) {
        ops->start = base + n;
        ops->length = base + 2 * n;
        ops->place = base + 3 * n;
    }
    return result;
}

/* spe's codes count as weights. */
static int create_codes(struct mixer_layer *layer, struct mixer_context *context, struct error *err)
{
    const struct mixer *config = layer->config;
    const struct position *position = &config->position;
    struct ops_positions *ops = &layer->position.ops;
    size_t rows = (size_t)config->num_heads * (size_t)config->features *
                  (size_t)(2 * position->sines + position->gated);
    size_t bytes = rows * (size_t)config->features_positioned * sizeof(float);
    const float *sources[2] = {position->code_q, position->code_k};
    const float **targets[2] = {&ops->code_q, &ops->code_k};
    for (int i = 0; i < 2; i++) {
        void *device = NULL;
        if (context->ops->upload(context->backend, sources[i], bytes, &device, err) != 0)
            return -1;
        *targets[i] = device;
    }
    for (int as = 0; as < WEIGHT_FORMAT_COUNT; as++)
        context->weights_bytes[as] += 2 * bytes;
    ops->num_sines = position->sines;
    ops->gated = position->gated;
    ops->outputs = config->features_positioned;
    return 0;
}

int mixer_position_create(struct mixer_layer *layer, struct mixer_context *context, int dim,
                          struct error *err)
{
    const struct position *position = &layer->config->position;
    struct ops_positions *ops = &layer->position.ops;
    if (!mixer_position_rotates(layer))
        return 0;
    ops->kind = position->kind;
    ops->basis = position->basis;
    ops->pairing = position->kind == POSITION_ROPE ? position->pairing : ROPE_PAIRING_ADJACENT;
    ops->dim = dim;
    ops->rotary_dims = position->rotary_dims;
    if (position->kind == POSITION_ROPE)
        ops->basis = BASIS_IDENTITY;
    if (ops->basis == BASIS_HOUSEHOLDER) {
        void *device = NULL;
        if (context->ops->upload(context->backend, position->householder,
                                 (size_t)dim * sizeof(float), &device, err) != 0)
            return -1;
        ops->householder = device;
    }
    if (position->kind == POSITION_LRPE_PERMUTATION)
        return create_cycles(layer, context, dim, err);
    if (position->kind == POSITION_SPE && create_codes(layer, context, err) != 0)
        return -1;
    return create_angles(layer, context, dim, err);
}

void mixer_position_clear(struct mixer_layer *layer, const struct ops *ops, struct backend *backend)
{
    ops->unload(backend, (void *)(uintptr_t)layer->position.ops.householder);
    ops->unload(backend, (void *)(uintptr_t)layer->position.ops.cycle);
    ops->unload(backend, (void *)(uintptr_t)layer->position.ops.code_q);
    ops->unload(backend, (void *)(uintptr_t)layer->position.ops.code_k);
}

struct ops_positions mixer_position_prepare(const struct mixer_layer *layer, const struct ops *ops,
                                            struct backend *backend,
                                            struct mixer_workspace *workspace)
{
    const struct mixer_position *position = &layer->position;
    const float factor = layer->config->position.factor;
    if (position->theta != NULL &&
        (workspace->angles_of != position->theta || workspace->angles_factor != factor)) {
        ops->angles(backend, &(struct ops_angles){.theta = position->theta,
                                                  .count = position->num_angles,
                                                  .factor = factor,
                                                  .cosines = workspace->cosines,
                                                  .sines = workspace->sines});
        workspace->angles_of = position->theta;
        workspace->angles_factor = factor;
    }
    struct ops_positions call = position->ops;
    call.cosines = workspace->cosines;
    call.sines = workspace->sines;
    return call;
}

void mixer_position_run(const struct mixer_layer *layer, const struct ops *ops,
                        struct backend *backend, struct mixer_workspace *workspace, struct rows *q,
                        struct rows *k)
{
    const struct mixer *config = layer->config;
    struct ops_positions call = mixer_position_prepare(layer, ops, backend, workspace);
    int64_t out_dim = call.kind == POSITION_LRPE_UNITARY ? 2 * call.dim : call.dim;
    assert(k->data == q->data + config->num_qk_heads * call.dim); /* as they are packed */
    call.num_heads = config->num_qk_heads;
    call.num_kv_heads = mixer_key_heads(config);
    call.x = *q;
    call.out = workspace->turned;
    ops->positions(backend, &call);
    *q = workspace->turned;
    *k = mixer_columns(workspace->turned, config->num_qk_heads * out_dim);
}
