/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the tensors of a preset. Its family adds them, with names and shapes as in its files, and
 * says how large their random numbers are. random_weights.h makes the numbers. */
#ifndef ENGINE_MODEL_RANDOM_LIST_H
#define ENGINE_MODEL_RANDOM_LIST_H

#include "engine/model/config.h"
#include "engine/model/tensors.h"
#include "engine/model/weights.h"

/* What a checkpoint's tensors say by themselves (model-format.md, `shapes`). */
struct random_shapes {
    int64_t head_dim, value_dim;
    int64_t features; /* of a head, before the position; where the feature map leaves it free */
    bool glu, bias;
};

enum { RANDOM_MAX_RANK = 4 };

/* A tensor to be made. BF16, F32: mean + deviation * normal; I32: a permutation. F32 alone may have
 * a step, which is added i times to element i, and orthogonal rows: [n, rows, d] has then, in each
 * of the n, blocks of d rows that are orthogonal to each other and keep their lengths. */
struct random_tensor {
    char name[WEIGHT_NAME_SIZE];
    enum tensor_dtype dtype;
    int rank;
    int64_t shape[RANDOM_MAX_RANK];
    double mean, deviation;
    double step;
    bool orthogonal;
};

/* The order counts: a tensor's numbers depend on its place. */
struct random_list {
    const struct config *config;
    const struct random_shapes *shapes;
    struct random_tensor *tensors; /* [count]; the caller frees it */
    size_t count, capacity;
    bool failed; /* out of memory: nothing is added any more */
};

void random_list_add(struct random_list *list, const struct random_tensor *tensor);

/* "prefix.name", F32 */
void random_list_vector(struct random_list *list, const char *prefix, const char *name,
                        int64_t size, double mean, double deviation);
/* The same of shape [rank]. */
void random_list_array(struct random_list *list, const char *prefix, const char *name, int rank,
                       const int64_t *shape, double deviation);
/* Performer's: directions of a normal distribution, orthogonal, [count, rows, d]. */
void random_list_directions(struct random_list *list, const char *prefix, const char *name,
                            int64_t count, int64_t rows, int64_t d);
/* "name.weight", BF16 */
void random_list_matrix(struct random_list *list, const char *name, int64_t rows, int64_t cols,
                        double deviation);
/* As many of them, stacked. */
void random_list_stack(struct random_list *list, const char *prefix, const char *name,
                       int64_t count, int64_t rows, int64_t cols, double deviation);
/* A linear layer "prefix.name", and its bias where the preset has any; the mean of that. */
void random_list_linear(struct random_list *list, const char *prefix, const char *name,
                        int64_t rows, int64_t cols, double bias);
/* One whose output is added to the residual stream, as are 2 * num_layers of them. */
void random_list_output(struct random_list *list, const char *prefix, const char *name,
                        int64_t rows, int64_t cols);
void random_list_norm(struct random_list *list, const char *prefix, const char *name,
                      enum norm_kind kind, int64_t size);

#endif
