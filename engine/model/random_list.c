/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/random_list.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void random_list_add(struct random_list *list, const struct random_tensor *spec)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 256;
        struct random_tensor *grown = reallocarray(list->tensors, capacity, sizeof *grown);
        list->failed |= !grown;
        if (!grown)
            return;
        list->tensors = grown;
        list->capacity = capacity;
    }
    list->tensors[list->count++] = *spec;
}

void random_list_vector(struct random_list *list, const char *prefix, const char *name,
                        int64_t size, double mean, double deviation)
{
    struct random_tensor spec = {
        .dtype = TENSOR_F32, .rank = 1, .shape = {size}, .mean = mean, .deviation = deviation};
    weights_name(spec.name, "%s.%s", prefix, name);
    random_list_add(list, &spec);
}

void random_list_array(struct random_list *list, const char *prefix, const char *name, int rank,
                       const int64_t *shape, double deviation)
{
    struct random_tensor spec = {.dtype = TENSOR_F32, .rank = rank, .deviation = deviation};
    memcpy(spec.shape, shape, (size_t)rank * sizeof *shape);
    weights_name(spec.name, "%s.%s", prefix, name);
    random_list_add(list, &spec);
}

void random_list_directions(struct random_list *list, const char *prefix, const char *name,
                            int64_t count, int64_t rows, int64_t d)
{
    random_list_array(list, prefix, name, 3, (int64_t[]){count, rows, d}, 1);
    if (!list->failed)
        list->tensors[list->count - 1].orthogonal = true;
}

void random_list_matrix(struct random_list *list, const char *name, int64_t rows, int64_t cols,
                        double deviation)
{
    struct random_tensor spec = {
        .dtype = TENSOR_BF16, .rank = 2, .shape = {rows, cols}, .deviation = deviation};
    weights_name(spec.name, "%s.weight", name);
    random_list_add(list, &spec);
}

void random_list_stack(struct random_list *list, const char *prefix, const char *name,
                       int64_t count, int64_t rows, int64_t cols, double deviation)
{
    struct random_tensor spec = {
        .dtype = TENSOR_BF16, .rank = 3, .shape = {count, rows, cols}, .deviation = deviation};
    weights_name(spec.name, "%s.%s.weight", prefix, name);
    random_list_add(list, &spec);
}

void random_list_linear(struct random_list *list, const char *prefix, const char *name,
                        int64_t rows, int64_t cols, double bias)
{
    char full[WEIGHT_NAME_SIZE];
    weights_name(full, "%s.%s", prefix, name);
    random_list_matrix(list, full, rows, cols, 1 / sqrt((double)cols));
    if (list->shapes->bias)
        random_list_vector(list, full, "bias", rows, bias, 0.02);
}

void random_list_output(struct random_list *list, const char *prefix, const char *name,
                        int64_t rows, int64_t cols)
{
    size_t first = list->count;
    random_list_linear(list, prefix, name, rows, cols, 0);
    if (first < list->count)
        list->tensors[first].deviation /= sqrt(2 * (double)list->config->num_layers);
}

void random_list_norm(struct random_list *list, const char *prefix, const char *name,
                      enum norm_kind kind, int64_t size)
{
    char full[WEIGHT_NAME_SIZE];
    if (kind == NORM_NONE || kind == NORM_SIMPLE_RMSNORM || kind == NORM_L2)
        return;
    weights_name(full, "%s.%s", prefix, name);
    random_list_vector(list, full, "weight", size, 1, 0);
    if (kind == NORM_GATED_RMSNORM)
        random_list_vector(list, full, "gate", size, 1, 0.25);
    if (kind == NORM_LAYERNORM && list->shapes->bias)
        random_list_vector(list, full, "bias", size, 0, 0.02);
}
