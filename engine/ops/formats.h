/* SPDX-License-Identifier: Apache-2.0 */
/* The number formats that are chosen when a model is loaded, and their names in flags and replies.
 * Between operations activations are f32 whatever is chosen, as are states, norms and softmax. */
#ifndef ENGINE_OPS_FORMATS_H
#define ENGINE_OPS_FORMATS_H

#include <stdbool.h>

/* Of the matrices that are multiplied with. q8: int8 with one f16 scale per 32 weights of a row. */
#define WEIGHT_FORMATS(X)   \
    X(WEIGHTS_AUTO, "auto") \
    X(WEIGHTS_F32, "f32")   \
    X(WEIGHTS_BF16, "bf16") \
    X(WEIGHTS_F16, "f16")   \
    X(WEIGHTS_Q8, "q8")
/* Of the KV pages of layers with a full window (rings are f32, as all of a slot). */
#define KV_FORMATS(X)  \
    X(KV_AUTO, "auto") \
    X(KV_F32, "f32")   \
    X(KV_F16, "f16")   \
    X(KV_BF16, "bf16")
/* What products may round their inputs to. f32: to no less than its 24 bits, on a GPU with weights
 * of two bytes or one to 17 (f16: 23). 16bit: with bf16 weights to bf16, with q8 weights to 16 bits
 * of the largest of 32 inputs, on a GPU to bf16. 8bit: with q8 weights to 8 bits of it; not on a
 * GPU. */
#define ACTIVATION_FORMATS(X)     \
    X(ACTIVATIONS_F32, "f32")     \
    X(ACTIVATIONS_16BIT, "16bit") \
    X(ACTIVATIONS_8BIT, "8bit")
#define FORMATS_VALUE(value, name) value,

/* auto: as most of the file's bytes are. */
enum weight_format { WEIGHT_FORMATS(FORMATS_VALUE) };
/* auto: f32 when the weights are f32, else f16. */
enum kv_format { KV_FORMATS(FORMATS_VALUE) };
enum activation_format { ACTIVATION_FORMATS(FORMATS_VALUE) };

enum { WEIGHT_FORMAT_COUNT = WEIGHTS_Q8 + 1 };

const char *weight_format_name(enum weight_format format);
const char *kv_format_name(enum kv_format format);
const char *activation_format_name(enum activation_format format);
/* False: no format has that name. */
bool weight_format_find(const char *name, enum weight_format *out);
bool kv_format_find(const char *name, enum kv_format *out);
bool activation_format_find(const char *name, enum activation_format *out);
/* Whether products with weights of a format, not auto, can round their inputs so. */
bool activation_format_fits(enum activation_format activations, enum weight_format weights);

#endif
