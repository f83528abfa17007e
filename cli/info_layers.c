/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/info_layers.h"

#include "engine/cost.h"
#include "engine/model/model.h"
#include "lib/base/size_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const features[] = {MODEL_FEATURE_MAPS(MODEL_NAME)};
static const char *const gates[] = {MODEL_GATES(MODEL_NAME)};
static const char *const positions[] = {MODEL_POSITIONS(MODEL_NAME)};
static const char *const norms[] = {MODEL_NORMS(MODEL_NAME)};
static const char *const windows[] = {MODEL_WINDOWS(MODEL_NAME)};
static const char *const activations[] = {MODEL_ACTIVATIONS(MODEL_NAME)};
static const char *const acts[] = {MODEL_ACTS(MODEL_NAME)};

/* "linear: exp features, refined gate, rope, rmsnorm; 4 heads, d 12, d_v 12, m 12" */
static void describe(const struct mixer *mixer, char *text, size_t size)
{
    char kind[160], heads[48] = "", chunks[64] = "", activation[16] = "", scores[64] = "";
    if (mixer->chunk_size)
        snprintf(chunks, sizeof chunks, ", chunks of %d tokens", mixer->chunk_size);
    if (mixer->conv.width)
        snprintf(chunks, sizeof chunks, ", convolution of %d tokens%s", mixer->conv.width,
                 mixer->conv.activation == VALUE_ACTIVATION_SILU ? " (silu)" : "");
    if (mixer->activation != SOFTMAX_ACT_SOFTMAX)
        snprintf(activation, sizeof activation, " (%s)", activations[mixer->activation]);
    if (!mixer_has(mixer, HAS_HEADS)) {
        snprintf(text, size, "gated convolution of %d tokens%s, %d channels", mixer->conv.width,
                 mixer->conv.activation == VALUE_ACTIVATION_SILU ? " (silu)" : "",
                 mixer->value_dim);
        return;
    }
    if (mixer_has(mixer, HAS_FEATURES))
        snprintf(kind, sizeof kind, "linear: %s features, gate %s%s%s",
                 features[mixer->feature_map], gates[mixer->gate],
                 mixer->sum_norm ? ", sum_norm" : "", chunks);
    else if (window_has(mixer->window, KEEPS_ALL_KEYS))
        snprintf(kind, sizeof kind, "softmax%s", activation);
    else if (window_has(mixer->window, HAS_SEGMENTS))
        snprintf(kind, sizeof kind,
                 "softmax: %s window of %d tokens, segments of %d tokens as %d vectors",
                 windows[mixer->window], mixer->window_size, mixer->segment_length,
                 mixer->segment_rank);
    else
        snprintf(kind, sizeof kind, "softmax%s: %s window of %d tokens", activation,
                 windows[mixer->window], mixer->window_size);
    if (mixer->q_norm.kind != NORM_NONE || mixer->score_softcap != 0)
        snprintf(scores, sizeof scores, "%s%s%s",
                 mixer->q_norm.kind != NORM_NONE ? ", q and k " : "",
                 mixer->q_norm.kind != NORM_NONE ? norms[mixer->q_norm.kind] : "",
                 mixer->score_softcap != 0 ? ", capped scores" : "");
    if (mixer->keys_of > 0)
        snprintf(heads, sizeof heads, " (%d of k and v, of layer %d)", mixer->num_kv_heads,
                 mixer->keys_of - 1);
    else if (mixer->num_kv_heads != mixer->num_heads)
        snprintf(heads, sizeof heads, " (%d of k and v)", mixer->num_kv_heads);
    else if (mixer->num_qk_heads != mixer->num_heads)
        snprintf(heads, sizeof heads, " (%d of q and k)", mixer->num_qk_heads);
    snprintf(text, size, "%s%s, position %s%s, output norm %s%s; %d heads%s, d %d, d_v %d%s, m %d",
             kind, scores, positions[mixer->position.kind],
             mixer->position.distances ? " and a bias by distance" : "",
             norms[mixer->output_norm.kind],
             mixer->output_gate == OUTPUT_GATE_NONE ? ""
             : mixer->gate_first                    ? " after the output gate"
             : mixer->gate_per_head                 ? ", output gate per head"
                                                    : ", output gate",
             mixer->num_heads, heads, mixer->head_dim, mixer->value_dim,
             mixer->values_in_keys    ? " in keys"
             : mixer->keys_are_values ? " of keys"
                                      : "",
             mixer->features_positioned);
}

/* Where it is not 1. */
static void tell_number(FILE *out, const char *name, float value)
{
    if (value != 1)
        fprintf(out, ", %s %g", name, (double)value);
}

static void tell_mlp(FILE *out, const struct mlp *mlp, bool beside)
{
    const struct mlp *shape = mlp_shape(mlp);
    fprintf(out, "       %c %-8s %s%s, %lld wide", beside ? '+' : ' ', "MLP",
            shape->gate_proj.rows > 0 ? "gated " : "", acts[mlp->act],
            (long long)shape->up_proj.rows);
    if (mlp->layer_input)
        fprintf(out, ", times the layer's input");
    if (mlp->num_experts > 0)
        fprintf(out, ", %d of %d experts%s%s", mlp->experts_per_token, mlp->num_experts,
                mlp->rule.renormalize ? " renormalized" : "",
                mlp->shared != NULL ? " and a shared one" : "");
}

static void tell_branch(FILE *out, const struct branch *branch, bool beside)
{
    const struct mlp *mlp = branch->mlp;
    char text[360];
    for (const struct mixer *m = branch->mixer; m != NULL; m = m->second) {
        const bool part = m != branch->mixer;
        describe(m, text, sizeof text);
        fprintf(out, "       %c %-8s %s", beside || part ? '+' : ' ', m->name, text);
        if (m->second)
            fprintf(out, ", %s\n", m->concatenates ? "beside" : "added to");
    }
    if (mlp)
        tell_mlp(out, mlp, beside);
    fprintf(out, "; of %s%sx", branch->pre.kind != NORM_NONE ? norms[branch->pre.kind] : "",
            branch->pre.kind != NORM_NONE ? " " : "");
    if (branch->shift.width > 0)
        fprintf(out, ", token shift");
    tell_number(out, "scale", branch->scale);
    fprintf(out, "\n");
}

static void tell_block(FILE *out, const struct block *block)
{
    for (int i = 0; i < block->num_branches; i++)
        tell_branch(out, &block->branches[i], i > 0);
    if (block->input.kind == NORM_NONE && block->post.kind == NORM_NONE && block->alpha == 1 &&
        block->beta == 1)
        return;
    fprintf(out, "         norm before %s, behind %s", norms[block->input.kind],
            norms[block->post.kind]);
    tell_number(out, "alpha", block->alpha);
    tell_number(out, "beta", block->beta);
    fprintf(out, "\n");
}

/* All that is said of a layer but its number. NULL: no memory. The caller frees it. */
static char *tell_layer(const struct engine *engine, int i)
{
    const struct layer *layer = &engine_model(engine)->layers[i];
    const struct cost_layer cost = cost_of_layer(engine_program(engine), i);
    char weights[SIZE_TEXT], state[SIZE_TEXT], kv[SIZE_TEXT], *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    fprintf(out, "%s: weights %s, state %s, KV %s a token, %.3f million operations\n", layer->name,
            size_text((double)cost.weight_bytes, weights),
            size_text((double)cost.state_bytes, state),
            size_text((double)cost.kv_bytes_per_token, kv), cost.operations / 1e6);
    for (int b = 0; b < layer->num_blocks; b++)
        tell_block(out, &layer->blocks[b]);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* "0-2, 4" of the layers from `first` on that say what it says; tells[] of these becomes NULL but
 * for the first's. */
static void print_numbers(char **tells, int first, int count)
{
    for (int i = first; i < count; i++) {
        if (!tells[i] || strcmp(tells[i], tells[first]) != 0)
            continue;
        const int begin = i;
        while (i + 1 < count && tells[i + 1] && strcmp(tells[i + 1], tells[first]) == 0)
            i++;
        printf("%s%d", begin == first ? "  " : ", ", begin);
        if (i > begin)
            printf("-%d", i);
        for (int same = begin; same <= i; same++)
            if (same != first) {
                free(tells[same]);
                tells[same] = NULL;
            }
    }
}

int info_layers_print(const struct engine *engine, struct error *err)
{
    const int count = engine_model(engine)->num_layers;
    char **tells = calloc((size_t)count, sizeof *tells);
    bool told = tells != NULL;
    for (int i = 0; told && i < count; i++)
        told = (tells[i] = tell_layer(engine, i)) != NULL;
    if (told)
        printf("layers             operations are those on a text's first token\n");
    for (int i = 0; told && i < count; i++)
        if (tells[i]) {
            print_numbers(tells, i, count);
            printf("  %s", tells[i]);
        }
    for (int i = 0; tells && i < count; i++)
        free(tells[i]);
    free(tells);
    return told ? 0 : error_set(err, ERROR_NO_MEMORY, "layers: no memory");
}

/* NULL, which leaves the key out, where the mixer has no such number. */
static json_t *size_json(int size)
{
    return size > 0 ? json_integer(size) : NULL;
}

/* Its keys of config.json, and sizes (model-format.md). */
static json_t *mixer_json(const struct mixer *mixer)
{
    if (!mixer_has(mixer, HAS_HEADS))
        return json_pack("{ss ss si si}", "mixer", mixer->name, "kind", "conv", "convolution",
                         mixer->conv.width, "value_dim", mixer->value_dim);
    const bool linear = mixer_has(mixer, HAS_FEATURES);
    const char *combine = mixer->concatenates ? "concatenate" : "add";
    return json_pack(
        "{ss ss ss* ss* so* so* ss so* ss* ss* so* so* so* so* ss* si si so* si si so* si}",
        "mixer", mixer->name, "kind", linear ? "linear" : "softmax", "feature_map",
        linear ? features[mixer->feature_map] : NULL, "gate", linear ? gates[mixer->gate] : NULL,
        "chunk_size", size_json(mixer->chunk_size), "convolution", size_json(mixer->conv.width),
        "position", positions[mixer->position.kind], "distance_bias",
        size_json(mixer->position.distances), "activation",
        linear ? NULL : activations[mixer->activation], "window",
        linear ? NULL : windows[mixer->window], "window_size", size_json(mixer->window_size),
        "segment_length", size_json(mixer->segment_length), "segment_rank",
        size_json(mixer->segment_rank), "score_divisor", size_json(mixer->score_divisor), "combine",
        mixer->second ? combine : NULL, "heads", mixer->num_heads, "kv_heads", mixer->num_kv_heads,
        "qk_heads", size_json(mixer->num_qk_heads < mixer->num_heads ? mixer->num_qk_heads : 0),
        "head_dim", mixer->head_dim, "value_dim", mixer->value_dim, "values_in_keys",
        size_json(mixer->values_in_keys ? mixer->value_dim : 0), "features",
        mixer->features_positioned);
}

static json_t *whole_mixer_json(const struct mixer *mixer)
{
    json_t *json = mixer_json(mixer);
    if (mixer->second)
        json_object_set_new(json, "second", mixer_json(mixer->second));
    return json;
}

static json_t *mlp_json(const struct mlp *mlp)
{
    const struct mlp *shape = mlp_shape(mlp);
    json_t *json =
        json_pack("{ss sb sI}", "hidden_act", acts[mlp->act], "gated", shape->gate_proj.rows > 0,
                  "intermediate_size", (json_int_t)shape->up_proj.rows);
    if (mlp->num_experts > 0)
        json_object_update_new(json, json_pack("{si si sb}", "num_experts", mlp->num_experts,
                                               "num_experts_per_tok", mlp->experts_per_token,
                                               "norm_topk_prob", mlp->rule.renormalize));
    return json;
}

/* The first mixer, with the others as a list, the MLPs, and costs. */
static json_t *layer_json(const struct engine *engine, int i)
{
    const struct layer *layer = &engine_model(engine)->layers[i];
    const struct cost_layer cost = cost_of_layer(engine_program(engine), i);
    json_t *first = NULL, *others = json_array(), *mlps = json_array();
    const struct branch *branch;
    for (int b = 0; (branch = layer_branch(layer, b)) != NULL; b++) {
        const struct mlp *mlp = branch->mlp;
        if (mlp)
            json_array_append_new(mlps, mlp_json(mlp));
        else if (first)
            json_array_append_new(others, whole_mixer_json(branch->mixer));
        else
            first = whole_mixer_json(branch->mixer);
    }
    json_t *json = first ? first : json_object();
    json_object_update_new(json, json_pack("{ss so so sI sI sI sI}", "layer", layer->name,
                                           "other_mixers", others, "mlps", mlps, "weights_bytes",
                                           (json_int_t)cost.weight_bytes, "state_bytes",
                                           (json_int_t)cost.state_bytes, "kv_bytes_per_token",
                                           (json_int_t)cost.kv_bytes_per_token, "operations",
                                           (json_int_t)cost.operations));
    return json;
}

json_t *info_layers_json(const struct engine *engine)
{
    json_t *layers = json_array();
    for (int i = 0; i < engine_model(engine)->num_layers; i++)
        json_array_append_new(layers, layer_json(engine, i));
    return layers;
}
