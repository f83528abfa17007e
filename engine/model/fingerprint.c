/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/fingerprint.h"

#include "engine/model/weights.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Numbers that are read at a time: whole blocks of every dtype, which stay in a core's cache from
 * the check to the hash. And how far ahead of them the system reads the file. */
enum { PIECE = 1 << 18, BYTES_AHEAD = 16 << 20 };

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

/* The bytes of a tensor. Those of a file do not stay in memory. */
static int add_numbers(XXH3_state_t *hash, const struct tensor *tensor, bool mapped,
                       struct error *err)
{
    const bool checked = tensor_dtype_of_matrices(tensor->dtype);
    for (size_t first = 0; first < tensor->elements; first += PIECE) {
        const size_t left = tensor->elements - first, n = left < PIECE ? left : PIECE;
        const unsigned char *data = tensor->data + tensor_dtype_size(tensor->dtype, first);
        const size_t bytes = tensor_dtype_size(tensor->dtype, n);
        if (mapped) /* what follows is mostly the next tensor; beyond the file it is an error */
            file_ahead(data + BYTES_AHEAD, bytes);
        if (checked && weights_check_finite_part(tensor, first, n, err) != 0)
            return -1;
        XXH3_128bits_update(hash, data, bytes);
        if (mapped)
            file_release(data, bytes);
    }
    if (mapped) /* also pages that two pieces share */
        file_release(tensor->data, tensor->bytes);
    return 0;
}

static int add_tensors(XXH3_state_t *hash, const struct model *model, struct error *err)
{
    struct tensors *file = model_tensors(model);
    const bool mapped = tensors_num_maps(file) > 0;
    for (size_t i = 0; i < tensors_count(file); i++) {
        const struct tensor *tensor = tensors_at(file, i);
        if (tensor->elements == 0) /* also what the loader ignores: buffers of older exporters */
            continue;
        add_text(hash, tensor->name);
        add_text(hash, tensor_dtype_name(tensor->dtype));
        add_int(hash, tensor->rank);
        for (int j = 0; j < tensor->rank; j++)
            add_int(hash, tensor->shape[j]);
        add_scaling(hash, model, tensor);
        add_order(hash, &tensor->order);
        if (tensor->turned)
            add_text(hash, "turned");
        if (add_numbers(hash, tensor, mapped, err) != 0)
            return -1;
    }
    return 0;
}

static void add_norm(XXH3_state_t *hash, const struct norm *norm)
{
    add_int(hash, norm->kind);
    add_real(hash, (double)norm->eps);
    if (norm->plus_one)
        add_text(hash, "plus_one");
}

/* A number that counts only where it is not the usual one. */
static void add_unusual(XXH3_state_t *hash, const char *name, double value, double usual)
{
    if (value == usual)
        return;
    add_text(hash, name);
    add_real(hash, value);
}

/* As add_unusual, of number `place` of several: a mixer's factor, a layer's branch, or the block
 * that begins with that branch. */
static void add_placed(XXH3_state_t *hash, const char *name, int place, double value, double usual)
{
    if (value != usual)
        add_int(hash, place);
    add_unusual(hash, name, value, usual);
}

static void add_position(XXH3_state_t *hash, const struct position *position)
{
    add_int(hash, position->kind);
    add_int(hash, position->rotary_dims);
    add_real(hash, position->base);
    add_int(hash, position->pairing);
    add_int(hash, position->stage);
    add_int(hash, position->basis);
    /* In f32: libraries' pow differs in a double's last bits, from one processor to another too. */
    for (int i = 0; position->frequencies != NULL && i < position->rotary_dims / 2; i++)
        add_real(hash, (double)(float)position->frequencies[i]);
    add_unusual(hash, "rope factor", (double)position->factor, 0);
}

static void add_norm_set(XXH3_state_t *hash, const struct norm *norm)
{
    if (norm->kind != NORM_NONE)
        add_norm(hash, norm);
}

static void add_where(XXH3_state_t *hash, bool condition, int64_t value)
{
    if (condition)
        add_int(hash, value);
}

static void add_factors(XXH3_state_t *hash, const double *factors, int count)
{
    for (int i = 0; i < count; i++)
        add_placed(hash, "factor", i, factors[i], 1);
}

/* The rules of MIXER_NUMBERS. */
#define WHOLE(field)                                                           \
    _Static_assert(_Generic(mixer->field, float : 0, double : 0, default : 1), \
                   #field " is a fraction, which this rule would cut");
#define ADD_ALWAYS(field) WHOLE(field) add_int(hash, mixer->field);
#define ADD_REAL(field) add_real(hash, (double)mixer->field);
#define ADD_POSITION(field) add_position(hash, &mixer->field);
#define ADD_NORM(field) add_norm(hash, &mixer->field);
#define ADD_NORM_SET(field) add_norm_set(hash, &mixer->field);
#define ADD_SET(field) ADD_WITH(field, mixer->field != 0)
#define ADD_PLACED(field, place)               \
    add_where(hash, mixer->field != 0, place); \
    ADD_SET(field)
#define ADD_NAMED(field, text, usual) add_unusual(hash, text, (double)mixer->field, usual);
#define ADD_WITH(field, condition) WHOLE(field) add_where(hash, condition, mixer->field);
#define ADD_FACTORS(field, count) add_factors(hash, mixer->field, count);
#define ADD_FIELD(type, field, rule, ...) ADD_PART(field, rule, ##__VA_ARGS__)
#define ADD_PART(field, rule, ...) ADD_##rule(field, ##__VA_ARGS__)

static void add_mixer(XXH3_state_t *hash, const struct mixer *mixer)
{
    MIXER_NUMBERS(ADD_FIELD, ADD_PART)
    if (mixer->second != NULL)
        add_mixer(hash, mixer->second);
}

/* The activation of the model's MLPs, as of its first one. */
static int hidden_act(const struct model *model)
{
    const struct branch *branch;
    for (int i = 0; i < model->num_layers; i++)
        for (int b = 0; (branch = layer_branch(&model->layers[i], b)) != NULL; b++)
            if (branch->mlp != NULL)
                return branch->mlp->act;
    return 0;
}

static void add_placed_norm(XXH3_state_t *hash, const char *name, int place,
                            const struct norm *norm)
{
    if (norm->kind == NORM_NONE)
        return;
    add_int(hash, place);
    add_text(hash, name);
    add_norm(hash, norm);
}

static void add_mlp(XXH3_state_t *hash, const struct mlp *mlp, int place, int act)
{
    add_placed(hash, "act", place, mlp->act, act);
    add_placed(hash, "gate_scale", place, (double)mlp->gate_scale, 1);
    add_placed(hash, "experts per token", place, mlp->experts_per_token, 0);
    add_placed(hash, "norm_topk_prob", place, mlp->rule.renormalize, 0);
    add_placed(hash, "route score", place, mlp->rule.score, ROUTE_SOFTMAX);
    add_placed(hash, "route least", place, (double)mlp->rule.least, 0);
    add_placed(hash, "route groups", place, mlp->rule.groups, 0);
    add_placed(hash, "route top groups", place, mlp->rule.top_groups, 0);
    add_placed(hash, "route factor", place, (double)mlp->rule.factor, 0);
    add_placed(hash, "glu limit", place, (double)mlp->glu_limit, 0);
    add_placed(hash, "layer input", place, mlp->layer_input, 0);
    add_placed_norm(hash, "router", place, &mlp->router_norm);
}

/* What a block has beside its branches' norms and mixers. */
static void add_block(XXH3_state_t *hash, const struct block *block, int place, int act)
{
    add_placed_norm(hash, "input", place, &block->input);
    add_placed_norm(hash, "post", place, &block->post);
    add_placed(hash, "alpha", place, (double)block->alpha, 1);
    add_placed(hash, "beta", place, (double)block->beta, 1);
    for (int i = 0; i < block->num_branches; i++) {
        const struct branch *branch = &block->branches[i];
        add_placed(hash, "scale", place + i, (double)branch->scale, 1);
        add_placed(hash, "token shift", place + i, branch->shift.width, 0);
        add_placed_norm(hash, "branch", place + i, &branch->post);
        if (branch->mlp != NULL)
            add_mlp(hash, branch->mlp, place + i, act);
    }
}

/* A mixer and an MLP, each by itself, or, where the model's layers are so, both in one block. */
static bool is_plain(const struct layer *layer, bool parallel)
{
    const struct branch *first = layer_branch(layer, 0), *second = layer_branch(layer, 1);
    return layer->num_blocks == (parallel ? 1 : 2) && layer_branch(layer, 2) == NULL &&
           first->mixer != NULL && second != NULL && second->mlp != NULL;
}

static void add_layer(XXH3_state_t *hash, const struct layer *layer, bool parallel, int act)
{
    const struct branch *first = layer_branch(layer, 0), *branch;
    const bool alone = layer_branch(layer, 1) == NULL && first->mixer != NULL;
    for (int i = 0; (branch = layer_branch(layer, i)) != NULL; i++)
        add_norm(hash, &branch->pre);
    if (alone) /* the norm of an MLP that is not there */
        add_norm(hash, &(struct norm){.kind = NORM_NONE, .eps = first->pre.eps});
    for (int i = 0; (branch = layer_branch(layer, i)) != NULL; i++)
        if (branch->mixer != NULL)
            add_mixer(hash, branch->mixer);
    for (int i = 0, place = 0; i < layer->num_blocks; place += layer->blocks[i++].num_branches)
        add_block(hash, &layer->blocks[i], place, act);
    if (alone || is_plain(layer, parallel))
        return;
    for (int i = 0; i < layer->num_blocks; i++) {
        add_int(hash, layer->blocks[i].num_branches);
        for (int b = 0; b < layer->blocks[i].num_branches; b++)
            add_int(hash, layer->blocks[i].branches[b].mixer != NULL);
    }
}

/* What the tensors do not say. Enumerations by number: a new value of theirs goes to the end. What
 * came after version 0.2 counts only where it is used: fingerprints of other models stay. */
static void add_description(XXH3_state_t *hash, const struct model *model)
{
    const bool parallel = model->layers[0].blocks[0].num_branches == 2;
    const int act = hidden_act(model);
    add_text(hash, model->family);
    add_int(hash, model->vocab_size);
    add_int(hash, model->hidden_size);
    add_int(hash, act);
    add_int(hash, parallel);
    add_int(hash, model->tied);
    add_int(hash, model->position_embedding);
    add_norm(hash, &model->embedding_norm);
    add_norm(hash, &model->final_norm);
    add_int(hash, model->num_layers);
    if (model->embedding_scale != 1)
        add_real(hash, (double)model->embedding_scale);
    add_unusual(hash, "logit_scale", (double)model->logit_scale, 1);
    add_unusual(hash, "logit_softcap", (double)model->logit_softcap, 0);
    add_unusual(hash, "inputs of layers", model->layer_size, 0);
    for (int i = 0; i < model->num_layers; i++)
        add_layer(hash, &model->layers[i], parallel, act);
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

struct fingerprint_run {
    const struct model *model;
    unsigned char *fingerprint;
    struct error *err;
    pthread_t thread;
    bool joins;
    int result;
};

static void *run(void *context)
{
    struct fingerprint_run *run = context;
    run->result = model_fingerprint(run->model, run->fingerprint, run->err);
    return NULL;
}

struct fingerprint_run *fingerprint_start(const struct model *model, unsigned char *fingerprint,
                                          struct error *err)
{
    struct fingerprint_run *started = calloc(1, sizeof *started);
    if (started == NULL) {
        error_set(err, ERROR_NO_MEMORY, "fingerprint: no memory");
        return NULL;
    }
    *started = (struct fingerprint_run){.model = model, .fingerprint = fingerprint, .err = err};
    started->joins = tensors_num_maps(model_tensors(model)) > 0;
    if (!started->joins) {
        run(started);
        return started;
    }
    int failed = pthread_create(&started->thread, NULL, run, started);
    if (failed != 0) {
        error_set(err, ERROR_IO, "fingerprint: cannot start a thread: %s", strerror(failed));
        free(started);
        return NULL;
    }
    pthread_setname_np(started->thread, "regla-hash");
    return started;
}

int fingerprint_finish(struct fingerprint_run *started)
{
    if (started->joins)
        pthread_join(started->thread, NULL);
    const int result = started->result;
    free(started);
    return result;
}
