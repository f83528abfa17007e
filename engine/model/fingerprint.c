/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/fingerprint.h"

#include "engine/model/weights.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Changes when this file hashes something else: then every state file is another model's. */
static const char WHAT[] = "regla model 1";

static void add_text(XXH3_state_t *hash, const char *text)
{
    XXH3_128bits_update(hash, text, strlen(text) + 1);
}

static void add_int(XXH3_state_t *hash, int64_t value)
{
    XXH3_128bits_update(hash, &value, sizeof value);
}

static void add_real(XXH3_state_t *hash, double value)
{
    XXH3_128bits_update(hash, &value, sizeof value);
}

/* Numbers of F8_E4M3 become what the configuration says. */
static void add_scaling(XXH3_state_t *hash, const struct model *model, const struct tensor *tensor)
{
    if (tensor->dtype != TENSOR_F8_E4M3)
        return;
    add_int(hash, model->fp8_dtype);
    add_int(hash, tensor->block[0]);
    add_int(hash, tensor->block[1]);
}

/* Rows in another order make another model. */
static void add_order(XXH3_state_t *hash, const struct tensor_order *order)
{
    if (order->a == 0)
        return;
    add_int(hash, order->a);
    add_int(hash, order->b);
    add_int(hash, order->inner);
}

static int add_tensors(XXH3_state_t *hash, const struct model *model, struct error *err)
{
    struct tensors *file = model_tensors(model);
    for (size_t i = 0; i < tensors_count(file); i++) {
        const struct tensor *tensor = tensors_at(file, i);
        if (tensor->elements == 0) /* also what the loader ignores: buffers of older exporters */
            continue;
        if (tensor_dtype_of_matrices(tensor->dtype) && weights_check_finite(tensor, err) != 0)
            return -1;
        add_text(hash, tensor->name);
        add_text(hash, tensor_dtype_name(tensor->dtype));
        add_int(hash, tensor->rank);
        for (int j = 0; j < tensor->rank; j++)
            add_int(hash, tensor->shape[j]);
        add_scaling(hash, model, tensor);
        add_order(hash, &tensor->order);
        XXH3_128bits_update(hash, tensor->data, tensor->bytes);
    }
    return 0;
}

static void add_norm(XXH3_state_t *hash, const struct norm *norm)
{
    add_int(hash, norm->kind);
    add_real(hash, (double)norm->eps);
}

static void add_position(XXH3_state_t *hash, const struct position *position)
{
    add_int(hash, position->kind);
    add_int(hash, position->rotary_dims);
    add_real(hash, position->base);
    add_int(hash, position->pairing);
    add_int(hash, position->stage);
    add_int(hash, position->basis);
}

static void add_mixer(XXH3_state_t *hash, const struct mixer *mixer)
{
    const int64_t numbers[] = {
        mixer->kind,
        mixer->num_heads,
        mixer->num_kv_heads,
        mixer->head_dim,
        mixer->value_dim,
        mixer->features,
        mixer->features_positioned,
        mixer->feature_map,
        mixer->gate,
        mixer->query_scale,
        mixer->sum_norm,
        mixer->dpfp_nu,
        mixer->feature_rows,
        mixer->activation,
        mixer->window,
        mixer->window_size,
        mixer->output_norm_scope,
        mixer->output_gate,
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        add_int(hash, numbers[i]);
    add_real(hash, (double)mixer->gate_logit_normalizer);
    add_position(hash, &mixer->position);
    add_norm(hash, &mixer->output_norm);
    if (mixer->window == WINDOW_LONG_SHORT) {
        add_int(hash, mixer->segment_length);
        add_int(hash, mixer->segment_rank);
        add_norm(hash, &mixer->window_norm);
        add_norm(hash, &mixer->segment_norm);
    }
    /* What came later counts only where it is used: fingerprints of other models stay. */
    const int64_t later[] = {mixer->shared_qk, mixer->value_activation, mixer->score_divisor,
                             mixer->position.distances, mixer->chunk_size};
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (later[i] != 0) {
            add_int(hash, (int64_t)i);
            add_int(hash, later[i]);
        }
    if (mixer->second != NULL) {
        add_int(hash, mixer->concatenates);
        add_mixer(hash, mixer->second);
    }
}

/* What the tensors do not say. Enumerations by number: a new value of theirs goes to the end. */
static void add_description(XXH3_state_t *hash, const struct model *model)
{
    add_text(hash, model->family);
    add_int(hash, model->vocab_size);
    add_int(hash, model->hidden_size);
    add_int(hash, model->hidden_act);
    add_int(hash, model->parallel_residual);
    add_int(hash, model->tied);
    add_int(hash, model->position_embedding);
    add_norm(hash, &model->embedding_norm);
    add_norm(hash, &model->final_norm);
    add_int(hash, model->num_layers);
    if (model->embedding_scale != 1) /* came later, as add_mixer's last ones */
        add_real(hash, (double)model->embedding_scale);
    for (int i = 0; i < model->num_layers; i++) {
        add_norm(hash, &model->layers[i].attn_norm);
        add_norm(hash, &model->layers[i].mlp_norm);
        add_mixer(hash, &model->layers[i].mixer);
    }
}

int model_fingerprint(const struct model *model, unsigned char *fingerprint, struct error *err)
{
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL || XXH3_128bits_reset(hash) != XXH_OK) {
        XXH3_freeState(hash);
        return error_set(err, ERROR_NO_MEMORY, "fingerprint: no memory");
    }
    add_text(hash, WHAT);
    add_description(hash, model);
    if (add_tensors(hash, model, err) != 0) {
        XXH3_freeState(hash);
        return -1;
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
    memcpy(fingerprint, canonical.digest, FINGERPRINT_BYTES);
    XXH3_freeState(hash);
    return 0;
}
