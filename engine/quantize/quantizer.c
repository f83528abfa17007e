/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/quantize/quantizer.h"

#include "engine/cpu/backend.h"
#include "engine/model/quantized.h"
#include "engine/model/tensors.h"
#include "engine/ops/perform.h"
#include "engine/program/emitter.h"
#include "engine/quantize/checkpoint.h"
#include "engine/quantize/rounding.h"

#include <stdlib.h>
#include <string.h>

/* A tensor that is multiplied with. */
struct target {
    const struct tensor *tensor;
    int product;           /* that has its rows */
    bool *seen;            /* [rows]: which of them; owned */
    unsigned char *blocks; /* its rows in Q4_1, once they are rounded; owned */
    const char *why;       /* it stays as it is; NULL: it is rounded */
};

/* What a weight was packed of, and the sums of its inputs. */
struct product {
    const struct weight *weight;
    struct matrix parts[EMITTER_MAX_STACK];
    int num_parts;
    int targets[EMITTER_MAX_STACK]; /* of each part: index of a tensor, or -1 */
    float *sums;                    /* [in, in] in a pass, else NULL */
    bool done;
};

struct quantizer {
    struct quantizer_options options;
    struct product_observer observer;
    struct product *products; /* [count] */
    int count, capacity;
    const struct model *model; /* from quantizer_start on */
    struct target *targets;    /* [num_targets] */
    int num_targets;
    struct backend *backend; /* makes the sums */
    struct threads *threads; /* round */
    struct error failed;     /* in a call of the observer */
};

static int64_t inputs(const struct product *product)
{
    return product->parts[0].cols;
}

static size_t sums_bytes(const struct product *product)
{
    return (size_t)inputs(product) * (size_t)inputs(product) * sizeof(float);
}

static void see_weight(void *context, const struct weight *weight, const struct matrix *parts,
                       int num_parts)
{
    struct quantizer *q = context;
    if (q->count == q->capacity) {
        const int capacity = q->capacity > 0 ? 2 * q->capacity : 64;
        struct product *grown = reallocarray(q->products, (size_t)capacity, sizeof *grown);
        if (grown == NULL) {
            error_set(&q->failed, ERROR_NO_MEMORY, "no memory for a list of matrices");
            return;
        }
        q->products = grown;
        q->capacity = capacity;
    }
    struct product *product = &q->products[q->count++];
    *product = (struct product){.weight = weight, .num_parts = num_parts};
    for (int i = 0; i < num_parts; i++)
        product->parts[i] = parts[i];
}

static const struct target *first_target(const struct quantizer *q, const struct product *product)
{
    int i = 0;
    while (product->targets[i] < 0)
        i++;
    return &q->targets[product->targets[i]];
}

/* sums += xᵀ x, by a product of the transposed x with itself. */
static int add_inputs(struct quantizer *q, const struct product *product,
                      const struct ops_matmul *a)
{
    const int64_t in = inputs(product), n = a->num_rows;
    float *transposed = malloc((size_t)(in * n) * sizeof *transposed);
    if (transposed == NULL)
        return error_set(&q->failed, ERROR_NO_MEMORY, "no memory for %lld inputs of %lld tokens",
                         (long long)in, (long long)n);
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < in; i++)
            transposed[i * n + t] = a->x.data[t * a->x.stride + i];
    const struct matrix matrix = {.rows = in, .cols = n, .dtype = DTYPE_F32, .data = transposed};
    struct weight *weight;
    int result =
        cpu_ops.weight_create(q->backend, &weight, &matrix, 1, 1, WEIGHTS_EXACT, &q->failed);
    for (int64_t i = 0; result == 0 && i < in; i += q->options.max_step_tokens) {
        const int64_t left = in - i, most = q->options.max_step_tokens;
        perform_matmul(&cpu_ops, q->backend,
                       &(struct ops_matmul){.weight = weight,
                                            .num_rows = (int)(left < most ? left : most),
                                            .x = {transposed + i * n, n},
                                            .y = {product->sums + i * in, in},
                                            .accumulate = true});
    }
    if (result == 0)
        cpu_ops.weight_free(q->backend, weight);
    free(transposed);
    return result;
}

static void see_inputs(void *context, const struct ops_matmul *a)
{
    struct quantizer *q = context;
    for (int i = 0; i < q->count; i++)
        if (q->products[i].weight == a->weight && q->products[i].sums != NULL &&
            q->failed.code == ERROR_NONE && add_inputs(q, &q->products[i], a) != 0)
            error_prefix(&q->failed, "sums of the inputs of %s",
                         first_target(q, &q->products[i])->tensor->name);
}

int quantizer_open(struct quantizer **out, const struct quantizer_options *options,
                   struct error *err)
{
    struct quantizer *q = calloc(1, sizeof *q);
    if (q == NULL)
        return error_set(err, ERROR_NO_MEMORY, "quantizer: no memory");
    const struct cpu_options cpu = {.threads = options->threads, .weights = WEIGHTS_EXACT};
    const struct ops_limits limits = {.max_rows = options->max_step_tokens,
                                      .max_input = (options->max_step_tokens + 31) / 32 * 32};
    q->options = *options;
    q->observer = (struct product_observer){q, see_weight, see_inputs};
    if (cpu_open(&q->backend, &cpu, err) != 0 || cpu_ops.prepare(q->backend, &limits, err) != 0 ||
        threads_open(&q->threads, options->threads, err) != 0) {
        quantizer_close(q);
        return -1;
    }
    *out = q;
    return 0;
}

static void release_sums(struct quantizer *q, struct product *product)
{
    if (product->sums != NULL)
        cpu_ops.release(q->backend, product->sums, sums_bytes(product));
    product->sums = NULL;
}

void quantizer_close(struct quantizer *q)
{
    if (q == NULL)
        return;
    for (int i = 0; i < q->count; i++)
        release_sums(q, &q->products[i]);
    for (int i = 0; i < q->num_targets; i++) {
        free(q->targets[i].seen);
        free(q->targets[i].blocks);
    }
    free(q->targets);
    free(q->products);
    threads_close(q->threads);
    if (q->backend != NULL)
        cpu_ops.close(q->backend);
    free(q);
}

const struct product_observer *quantizer_observer(const struct quantizer *q)
{
    return &q->observer;
}

/* The tensor in which the matrix lies, or NULL. */
static const struct tensor *tensor_of(const struct model *model, const struct matrix *matrix)
{
    struct tensors *file = model_tensors(model);
    for (size_t i = 0; i < tensors_count(file); i++) {
        const struct tensor *tensor = tensors_at(file, i);
        const uintptr_t data = (uintptr_t)tensor->data, at = (uintptr_t)matrix->data;
        if (at >= data && at - data < tensor->bytes)
            return tensor;
    }
    return NULL;
}

/* The tensor's row that the matrix has as its row i. */
static int64_t tensor_row_of(const struct tensor *tensor, const struct matrix *matrix, int64_t i)
{
    const size_t before = (size_t)((const unsigned char *)matrix->data - tensor->data);
    return (int64_t)(before / dtype_size(matrix->dtype, (size_t)matrix->cols)) +
           model_matrix_row(matrix, i);
}

static const char *why_kept(const struct tensor *tensor, const struct matrix *matrix)
{
    if (!tensor_dtype_of_matrices(tensor->dtype) || dtype_block((enum dtype)tensor->dtype) > 1 ||
        !matrix->mapped || tensor->rank != 2 || tensor->shape[1] != matrix->cols ||
        matrix->columns.a != 0)
        return "it is no matrix of F32, F16 or BF16";
    return matrix->cols % PACKING_BLOCK != 0 ? "its rows are no whole blocks of 32" : NULL;
}

/* The tensor of a product's part among the targets, and which of its rows it has. */
static int add_target(struct quantizer *q, int product, const struct matrix *part, int *out,
                      struct error *err)
{
    const struct tensor *tensor = tensor_of(q->model, part);
    *out = -1;
    if (tensor == NULL || part->data == q->model->lm_head.data)
        return 0;
    int i = 0;
    while (i < q->num_targets && q->targets[i].tensor != tensor)
        i++;
    struct target *target = &q->targets[i];
    if (i == q->num_targets) {
        *target =
            (struct target){.tensor = tensor, .product = product, .why = why_kept(tensor, part)};
        q->num_targets++;
        if (target->why == NULL)
            target->seen = calloc((size_t)tensor->shape[0], sizeof *target->seen);
        if (target->why == NULL && target->seen == NULL)
            return error_set(err, ERROR_NO_MEMORY, "no memory for a list of rows");
    }
    if (target->why == NULL)
        target->why =
            target->product == product ? why_kept(tensor, part) : "several products have it";
    for (int64_t row = 0; target->why == NULL && row < part->rows; row++)
        target->seen[tensor_row_of(tensor, part, row)] = true;
    *out = i;
    return 0;
}

/* Whatever has other numbers than F32, F16 or BF16, but for what the model ignores. */
static int check_tensors(const struct model *model, struct error *err)
{
    struct tensors *file = model_tensors(model);
    for (size_t i = 0; i < tensors_count(file); i++) {
        const struct tensor *tensor = tensors_at(file, i);
        const enum tensor_dtype dtype = tensor->dtype;
        const bool plain = dtype == TENSOR_F32 || dtype == TENSOR_F16 || dtype == TENSOR_BF16 ||
                           dtype == TENSOR_I32 || dtype == TENSOR_I64;
        if (!plain && tensor->elements > 0)
            return error_set(err, ERROR_INVALID,
                             "%s: tensor \"%.100s\": expected dtype F32, F16 or BF16, as before a "
                             "quantization, got %s",
                             tensor->file, tensor->name, tensor_dtype_name(dtype));
    }
    return 0;
}

/* What experts see is not in the sums, and a router keeps its numbers. */
static int check_experts(const struct model *model, struct error *err)
{
    const struct branch *branch;
    for (int i = 0; i < model->num_layers; i++)
        for (int b = 0; (branch = layer_branch(&model->layers[i], b)) != NULL; b++)
            if (branch->mlp != NULL && branch->mlp->num_experts > 0)
                return error_set(err, ERROR_UNSUPPORTED,
                                 "%s: expected MLPs without experts, got %d experts in layer %d",
                                 model->directory, branch->mlp->num_experts, i);
    return 0;
}

int quantizer_start(struct quantizer *q, const struct model *model, struct error *err)
{
    bool any = false;
    q->model = model;
    if (check_experts(model, err) != 0 || check_tensors(model, err) != 0)
        return -1;
    q->targets = calloc((size_t)q->count * EMITTER_MAX_STACK + 1, sizeof *q->targets);
    if (q->targets == NULL || q->failed.code != ERROR_NONE)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a list of matrices");
    for (int p = 0; p < q->count; p++)
        for (int i = 0; i < q->products[p].num_parts; i++)
            if (add_target(q, p, &q->products[p].parts[i], &q->products[p].targets[i], err) != 0)
                return -1;
    for (int i = 0; i < q->num_targets; i++) {
        struct target *target = &q->targets[i];
        for (int64_t row = 0; target->why == NULL && row < target->tensor->shape[0]; row++)
            if (!target->seen[row])
                target->why = "some of its rows are multiplied with nothing";
        any = any || target->why == NULL;
    }
    return any ? 0
               : error_set(err, ERROR_INVALID,
                           "%s: expected matrices of F32, F16 or BF16 whose rows are whole blocks "
                           "of 32, got none",
                           model->directory);
}

/* The product's part's target, if it is rounded. */
static struct target *target_of(const struct quantizer *q, const struct product *product, int part)
{
    const int i = product->targets[part];
    return i >= 0 && q->targets[i].why == NULL ? &q->targets[i] : NULL;
}

int quantizer_next(struct quantizer *q, bool *any, struct error *err)
{
    size_t used = 0;
    *any = false;
    for (int p = 0; p < q->count; p++) {
        struct product *product = &q->products[p];
        bool wanted = false;
        for (int i = 0; i < product->num_parts; i++)
            wanted = wanted || target_of(q, product, i) != NULL;
        if (product->done || !wanted)
            continue;
        if (*any && sums_bytes(product) > q->options.memory_bytes - used)
            break;
        void *sums;
        if (cpu_ops.reserve(q->backend, sums_bytes(product), &sums, err) != 0)
            return -1;
        product->sums = sums;
        used += sums_bytes(product);
        *any = true;
        if (used > q->options.memory_bytes)
            break;
    }
    return 0;
}

/* Where the blocks of a part go. */
struct taking {
    const struct matrix *part;
    const struct target *target;
};

static void take_block(void *context, int64_t row, int64_t k,
                       const struct quantized_integers *block)
{
    const struct taking *taking = context;
    const int64_t first =
        tensor_row_of(taking->target->tensor, taking->part, row) * taking->part->cols + k;
    quantized_write_q4_1(block, taking->target->blocks + dtype_size(DTYPE_Q4_1, (size_t)first));
}

static int round_part(struct quantizer *q, const struct product *product, int part,
                      struct error *err)
{
    struct target *target = target_of(q, product, part);
    if (target == NULL)
        return 0;
    if (target->blocks == NULL)
        target->blocks =
            calloc(target->tensor->elements / PACKING_BLOCK, dtype_size(DTYPE_Q4_1, PACKING_BLOCK));
    if (target->blocks == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the blocks of %s",
                         target->tensor->name);
    struct taking taking = {&product->parts[part], target};
    const struct rounding_taker taker = {&taking, take_block};
    if (rounding_run(&product->parts[part], product->sums, q->threads, &taker, err) != 0)
        return error_prefix(err, "%s", target->tensor->name);
    return 0;
}

int quantizer_status(const struct quantizer *q, struct error *err)
{
    return q->failed.code == ERROR_NONE ? 0
                                        : error_set(err, q->failed.code, "%s", q->failed.message);
}

static int round_product(struct quantizer *q, struct product *product, struct error *err)
{
    /* as the other threads do: a number must not depend on whose it is */
    const unsigned saved = threads_flush_denormals();
    int result = rounding_factor(product->sums, inputs(product), q->threads, err);
    if (result != 0)
        error_prefix(err, "inputs of %s", first_target(q, product)->tensor->name);
    for (int i = 0; result == 0 && i < product->num_parts; i++)
        result = round_part(q, product, i, err);
    threads_restore_float(saved);
    release_sums(q, product);
    product->done = true;
    return result;
}

int quantizer_round(struct quantizer *q, bool *any, struct error *err)
{
    *any = false;
    for (int p = 0; p < q->count; p++) {
        if (q->products[p].sums == NULL)
            continue;
        *any = true;
        return round_product(q, &q->products[p], err);
    }
    return 0;
}

void quantizer_report(const struct quantizer *q, struct quantizer_report *report)
{
    *report = (struct quantizer_report){0};
    for (int i = 0; i < q->num_targets; i++) {
        const struct target *target = &q->targets[i];
        const int64_t numbers = (int64_t)target->tensor->elements, cols = target->tensor->shape[1];
        if (target->why == NULL && cols > report->most_inputs)
            report->most_inputs = cols;
        report->matrices += target->why == NULL;
        if (target->blocks == NULL)
            continue;
        report->rounded++;
        report->rounded_numbers += numbers;
        report->bytes_before += (int64_t)target->tensor->bytes;
        report->bytes_after += (int64_t)dtype_size(DTYPE_Q4_1, (size_t)numbers);
    }
}

const char *quantizer_kept(const struct quantizer *q, int i, const char **why)
{
    for (int t = 0; t < q->num_targets; t++) {
        if (q->targets[t].why == NULL || i-- > 0)
            continue;
        *why = q->targets[t].why;
        return q->targets[t].tensor->name;
    }
    return NULL;
}

int quantizer_write(const struct quantizer *q, const char *out, const unsigned char *fingerprint,
                    const volatile sig_atomic_t *stop, struct error *err)
{
    const char *folder = q->model->directory;
    struct tensors *tensors = model_tensors(q->model);
    const size_t count = (size_t)q->num_targets;
    struct checkpoint_blocks *blocks = calloc(count + 1, sizeof *blocks);
    if (blocks == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a list of matrices");
    for (size_t i = 0; i < count; i++)
        blocks[i] = (struct checkpoint_blocks){q->targets[i].tensor, q->targets[i].blocks};
    const int result =
        out != NULL
            ? checkpoint_write(out, folder, tensors, blocks, count, stop, err)
            : checkpoint_write_beside(folder, tensors, blocks, count, fingerprint, stop, err);
    free(blocks);
    return result;
}
