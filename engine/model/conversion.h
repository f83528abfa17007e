/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of a model's files as f32, and matrices of dtypes that no device multiplies with as
 * ones that they do: F64, and F8_E4M3 with its scales. */
#ifndef ENGINE_MODEL_CONVERSION_H
#define ENGINE_MODEL_CONVERSION_H

#include "engine/model/config.h"
#include "engine/model/tensors.h"

/* Whether it is one of numbers: of a matrix's dtype, F64 or F8_E4M3. */
bool conversion_is_number(enum tensor_dtype dtype);

/* Element i of a tensor of numbers, rounded to f32. The order of rows is the file's. */
float conversion_value(const struct tensor *tensor, size_t i);

/* The dtype of the matrix that a tensor of numbers becomes. */
enum dtype conversion_dtype(const struct fp8_config *fp8, const struct tensor *tensor);

/* Fills the data of *matrix, whose rows, cols and dtype are set: numbers in the arena.
 * Takes the scales of an F8_E4M3 tensor from the file, too. Fails when a number is not finite. */
int conversion_matrix(struct tensors *file, struct arena *arena, const struct fp8_config *fp8,
                      struct tensor *tensor, struct matrix *matrix, struct error *err);

#endif
