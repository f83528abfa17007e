/* SPDX-License-Identifier: Apache-2.0 */
/* The number formats that are chosen when a model is loaded, and who computes matrix products, with
 * their names in flags and replies.
 * Between operations activations are f32 whatever is chosen, as are states, norms and softmax.
 *
 * A format of weights is a row of WEIGHT_FORMATS: its name, its size, and to what its products may
 * round. All code asks this table. Each device has its own table of what it does with a format:
 * cpu/weights.c packs and cpu/kernels_product.h multiplies, cuda/weights.cu packs and
 * cuda/product.cuh multiplies. */
#ifndef ENGINE_OPS_FORMATS_H
#define ENGINE_OPS_FORMATS_H

#include <stdbool.h>
#include <stddef.h>

/* To what products may round their inputs.
 *   f32: to 24 bits; on a GPU, with weights of two bytes or one, to 17 bits (f16: 23)
 *   16bit: with bf16 weights, and always on a GPU, to bf16; so with f16 weights by AMX, and by
 * nothing else; with weights in blocks to 16-bit integers, scaled by the largest of 32 inputs
 *   8bit: with weights in blocks to 8-bit integers, scaled by the largest of 28 of 32 inputs: the
 * four that the largest of all is in have 16 bits; in q6 by the largest of 16; not on a GPU
 * By AMX attention rounds too, what it multiplies with keys and values: to bf16, or with weights in
 * blocks and 16bit to the sum of two numbers in bf16.
 *   auto: what a fixed table has for the device and the weights' format (engine/device.h) */
#define ACTIVATION_FORMATS(X)     \
    X(ACTIVATIONS_F32, "f32")     \
    X(ACTIVATIONS_16BIT, "16bit") \
    X(ACTIVATIONS_8BIT, "8bit")   \
    X(ACTIVATIONS_AUTO, "auto")

/* Of the matrices that are multiplied with: value, name, the end of what is named after it, kind,
 * traits, weights of a row that share a scale (1: no scale), bytes of so many weights, and whether
 * products may round to 16bit and to 8bit on some device, and what that does to a model's words
 * (activation_cost.h; 0: not measured).
 *   q8: int8, with one f16 scale per 32 weights of a row
 *   q6: six bits, with an f16 scale per 32 weights of a row and an 8-bit factor of it per 16
 *   q4: four bits, with an f16 scale and an f16 minimum per 32 weights of a row; the head is q6 */
/* clang-format off */
#define WEIGHT_FORMATS(X)                                                                          \
    X(WEIGHTS_F32, "f32", f32, FLOATS, 0, 1, 4, (0, 0, 0), (0, 0, 0))                              \
    X(WEIGHTS_BF16, "bf16", bf16, HALVES, HAS_WIDE_EXPONENT, 1, 2, (1, 8.64e-5, 0.9941), (0, 0, 0)) \
    X(WEIGHTS_F16, "f16", f16, HALVES, 0, 1, 2, (1, 0, 0), (0, 0, 0))                              \
    X(WEIGHTS_Q8, "q8", q8, INTEGERS, 0, 32, 34, (1, 5.34e-8, 1), (1, 4.64e-4, 0.9856))            \
    X(WEIGHTS_Q6, "q6", q6, INTEGERS, HAS_FACTORS, 32, 28, (1, 5.36e-8, 1), (1, 1.58e-3, 0.9749))  \
    X(WEIGHTS_Q4, "q4", q4, INTEGERS, HAS_MINIMUM, 32, 20, (1, 5.45e-8, 1), (1, 4.71e-4, 0.9849))
/* clang-format on */

/* What a row of weights is made of, which decides what packs it. */
enum weight_kind {
    WEIGHT_FLOATS,  /* f32, which hold any number of a file as it is */
    WEIGHT_HALVES,  /* two bytes each */
    WEIGHT_INTEGERS /* in blocks with a scale */
};
enum weight_trait {
    HAS_WIDE_EXPONENT = 1, /* halves with the exponent of f32 */
    HAS_FACTORS = 2,       /* blocks with a factor of the scale for each half */
    HAS_MINIMUM = 4        /* blocks with a minimum beside the scale */
};

/* The last columns in words, for help and messages; f16 needs AMX. */
#define WEIGHTS_OF_16BIT "bf16, f16, q8, q6 or q4"
#define WEIGHTS_OF_8BIT "q8, q6 or q4"

/* Of the KV pages of layers with a full window (rings are f32, as all of a slot). */
#define KV_FORMATS(X)  \
    X(KV_AUTO, "auto") \
    X(KV_F32, "f32")   \
    X(KV_F16, "f16")   \
    X(KV_BF16, "bf16")

/* Whose matrix products a GPU runs.
 *   own: the engine's; a row's bits depend on nothing else in its step
 *   cublaslt: those of many rows are cuBLASLt's (engine/cuda/cublaslt.cu), with dense weights of
 * two bytes */
#define PRODUCTS_LIST(X)   \
    X(PRODUCTS_OWN, "own") \
    X(PRODUCTS_CUBLASLT, "cublaslt")
#define WEIGHTS_OF_CUBLASLT "bf16 or f16"

#define FORMATS_VALUE(value, ...) value,
#define FORMATS_SIZES(value, name, end, kind, traits, block, bytes, ...) \
    value##_BLOCK = (block), value##_BYTES = (bytes),

enum activation_format { ACTIVATION_FORMATS(FORMATS_VALUE) };
/* auto: as most of the file's bytes are. */
enum weight_format { WEIGHTS_AUTO, WEIGHT_FORMATS(FORMATS_VALUE) };
/* auto: f32 when the weights are f32, else f16. */
enum kv_format { KV_FORMATS(FORMATS_VALUE) };
enum products { PRODUCTS_LIST(FORMATS_VALUE) };

enum { WEIGHT_FORMATS(FORMATS_SIZES) }; /* WEIGHTS_Q8_BLOCK and so on */

#define FORMATS_ONE(...) +1
enum {
    WEIGHT_FORMAT_COUNT = 1 WEIGHT_FORMATS(FORMATS_ONE), /* with auto */
    WEIGHT_FORMAT_FIRST = WEIGHTS_AUTO + 1
};
#define WEIGHTS_EXACT WEIGHTS_F32 /* holds every number of a file */

/* The choices of a flag: "auto|f32|bf16|f16|q8|q6|q4", and the same behind a list's beginning. */
#define FORMATS_CHOICE(value, name, ...) "|" name
#define FORMATS_LISTED(value, name, ...) ", " name
#define WEIGHT_FORMAT_CHOICES "auto" WEIGHT_FORMATS(FORMATS_CHOICE)
#define WEIGHT_FORMAT_LIST WEIGHT_FORMATS(FORMATS_LISTED)

#ifdef __cplusplus
#define FORMATS_CONSTANT constexpr
#else
#define FORMATS_CONSTANT static inline __attribute__((always_inline))
#endif
#define FORMATS_BLOCK(value, name, end, kind, traits, block, ...) format == value ? (block):
#define FORMATS_BYTES(value, name, end, kind, traits, block, bytes, ...) format == value ? (bytes):
#define FORMATS_KIND(value, name, end, kind, ...) format == value ? WEIGHT_##kind:
#define FORMATS_TRAITS(value, name, end, kind, traits, ...) format == value ? (traits):

/* Weights of a row that share a scale, 1 where each stands alone; not of auto. A constant where the
 * format is one. */
FORMATS_CONSTANT int weight_format_block(enum weight_format format)
{
    return WEIGHT_FORMATS(FORMATS_BLOCK) 1;
}

/* Bytes of so many. */
FORMATS_CONSTANT int weight_format_bytes(enum weight_format format)
{
    return WEIGHT_FORMATS(FORMATS_BYTES) 0;
}

FORMATS_CONSTANT enum weight_kind weight_format_kind(enum weight_format format)
{
    return WEIGHT_FORMATS(FORMATS_KIND) WEIGHT_FLOATS;
}

/* Any of these traits. */
FORMATS_CONSTANT bool weight_format_has(enum weight_format format, int traits)
{
    return ((WEIGHT_FORMATS(FORMATS_TRAITS) 0) & traits) != 0;
}

/* The format of the head, the matrix that makes logits, where the other matrices have this one: of
 * all kinds of matrices it loses most in four bits (loadtest/FIGURES.md, "Number formats"). */
FORMATS_CONSTANT enum weight_format weight_format_of_head(enum weight_format format)
{
    return format == WEIGHTS_Q4 ? WEIGHTS_Q6 : format;
}

FORMATS_CONSTANT bool weight_format_minimum(enum weight_format format)
{
    return weight_format_has(format, HAS_MINIMUM);
}

const char *weight_format_name(enum weight_format format);
const char *kv_format_name(enum kv_format format);
const char *activation_format_name(enum activation_format format);
const char *products_name(enum products products);
/* False: no format has that name. */
bool weight_format_find(const char *name, enum weight_format *out);
bool kv_format_find(const char *name, enum kv_format *out);
bool activation_format_find(const char *name, enum activation_format *out);
bool products_find(const char *name, enum products *out);
/* "auto, f32, bf16, f16, q8, q6 or q4", into text [size]; returns text. */
const char *weight_format_names(char *text, size_t size);
/* Whether products with weights of a format, not auto, can round their inputs so; not to auto. */
bool activation_format_fits(enum activation_format activations, enum weight_format weights);
/* Whether there are such products with weights of a format, not auto. */
bool products_fit(enum products products, enum weight_format weights);
/* What a user of these products is told when the program starts: which promise they break. NULL:
 * none. */
const char *products_caution(enum products products);

#endif
