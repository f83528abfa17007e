/* SPDX-License-Identifier: Apache-2.0 */
/* What llama.cpp calls the keys and tensors that the dense families share. A family's own table is
 * based on one of these. */
#ifndef ENGINE_MODEL_GGUF_DENSE_H
#define ENGINE_MODEL_GGUF_DENSE_H

#include "engine/model/gguf_config.h"

#define GGUF_DENSE_ATTENTION "model.layers.*.self_attn."

/* All but norms inside layers. */
extern const struct gguf_names gguf_dense;
/* With a norm before attention and one before the MLP. */
extern const struct gguf_names gguf_dense_prenorm;
/* Those, where q and k are in pairs, and their frequencies may be divided by a tensor. */
extern const struct gguf_names gguf_dense_paired;

/* Whether a layer has a tensor of this name, behind its number. */
bool gguf_dense_any_layer(const json_t *config, const struct gguf_source *source, const char *name);

/* A BOOL that may not be false. */
int gguf_dense_refuse_false(const struct gguf_source *source, const char *key, struct error *err);

/* An error without context_length, where something is computed from it. */
int gguf_dense_need_length(const struct gguf_source *source, struct error *err);

/* config.sliding_window and config.layer_types, of layers of which each `pattern`-th is full unless
 * a key says more. usual: the window where the key is absent; 0: then all layers are full. */
int gguf_dense_windows(json_t *config, const struct gguf_source *source, int64_t pattern,
                       int64_t usual, struct error *err);

/* config.rope_parameters, by kind of layer, in place of the one table: that holds for full layers,
 * and sliding ones have `base` unless a key says more, without scaling. */
int gguf_dense_rope_by_kind(json_t *config, const struct gguf_source *source, double base,
                            struct error *err);

/* What query_pre_attn_scalar is, which has no key: the largest model's own, of so many layers, or a
 * head's size. */
int gguf_dense_query_scale(json_t *config, int64_t largest, struct error *err);

#endif
