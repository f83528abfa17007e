/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/program/emitter.h"

#include "engine/ops/packing.h"
#include "engine/program/placing.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void emitter_open(struct emitter *emitter, struct program *program, const struct model *model,
                  const struct emitter_options *options)
{
    *emitter = (struct emitter){.program = program,
                                .ops = program->ops,
                                .backend = program->backend,
                                .model = model,
                                .options = options,
                                .layer = OPERATION_OF_NO_LAYER};
    emitter->packed = model->position_embeddings.rows * model->position_embeddings.cols +
                      (model->tied ? 0 : model->embeddings.rows * model->embeddings.cols);
    emitter->packed += model->layer_embeddings.rows * model->layer_embeddings.cols;
    program->layout.kv = options->kv;
    emitter->keys = calloc((size_t)model->num_layers, sizeof *emitter->keys);
    if (emitter->keys == NULL)
        emitter_no_memory(emitter, "program");
}

void emitter_close(struct emitter *emitter)
{
    for (int i = 0; i < emitter->num_angles; i++)
        free(emitter->angles[i].host);
    free(emitter->angles);
    free(emitter->keys);
}

bool emitter_failed(const struct emitter *emitter)
{
    return emitter->error.code != ERROR_NONE;
}

void emitter_no_memory(struct emitter *emitter, const char *what)
{
    error_set(&emitter->error, ERROR_NO_MEMORY, "%s: no memory", what);
}

void emitter_place(struct emitter *emitter, const char *what, int number)
{
    if (emitter_failed(emitter))
        error_prefix(&emitter->error, "%s %d", what, number);
}

/* Room for one more in an array of `count`, which grows by doubling. False: there is none. */
static bool grow(struct emitter *emitter, void **array, int count, size_t size)
{
    if ((count & (count - 1)) != 0)
        return true;
    void *more = realloc(*array, (count == 0 ? 1 : 2 * (size_t)count) * size);
    if (more == NULL) {
        emitter_no_memory(emitter, "program");
        return false;
    }
    *array = more;
    return true;
}

/* ---- buffers and state ---- */

static struct rows add_buffer(struct emitter *emitter, int64_t width, int64_t stride, int64_t rows)
{
    struct program *program = emitter->program;
    if (width > PLACING_MAX_WIDTH - 16)
        error_set(&emitter->error, ERROR_INVALID, "a row of %lld numbers is too wide",
                  (long long)width);
    if (width <= 0)
        return (struct rows){0};
    if (emitter_failed(emitter) ||
        !grow(emitter, (void **)&program->buffers, program->num_buffers, sizeof *program->buffers))
        return placing_rows(0, stride); /* of a program that will not be */
    const int number = program->num_buffers++;
    program->buffers[number] = (struct program_buffer){
        .width = width, .stride = stride, .num_rows = rows, .first = INT32_MAX, .last = -1};
    return placing_rows(number, stride);
}

struct rows emitter_rows(struct emitter *emitter, int64_t width)
{
    const struct emitter_options *options = emitter->options;
    const bool all = emitter->when == WHEN_ALWAYS;
    return add_buffer(emitter, width, (width + 15) & ~(int64_t)15,
                      all ? options->max_rows : options->max_logits);
}

/* What comes back after the operations. */
static void keep_buffer(struct emitter *emitter)
{
    struct program *program = emitter->program;
    if (emitter_failed(emitter))
        return;
    struct program_buffer *buffer = &program->buffers[program->num_buffers - 1];
    buffer->first = 0;
    buffer->last = INT32_MAX;
}

struct rows emitter_logits(struct emitter *emitter, int64_t width)
{
    struct program *program = emitter->program;
    assert(width > 0);
    program->logits = add_buffer(emitter, width, width, emitter->options->max_logits);
    keep_buffer(emitter);
    return program->logits;
}

struct rows emitter_hidden(struct emitter *emitter, int64_t width)
{
    struct program *program = emitter->program;
    program->hidden = add_buffer(emitter, width, width, emitter->options->max_rows);
    keep_buffer(emitter);
    return program->hidden;
}

size_t emitter_state(struct emitter *emitter, struct state_part part)
{
    size_t offset = 0;
    part.layer = emitter->layer;
    if (!emitter_failed(emitter))
        state_layout_add(&emitter->program->layout, part, &offset, &emitter->error);
    return offset;
}

/* ---- weights and what else is on the device ---- */

void *emitter_upload(struct emitter *emitter, const void *host, size_t bytes)
{
    struct program *program = emitter->program;
    void *device = NULL;
    if (host == NULL || emitter_failed(emitter) ||
        !grow(emitter, (void **)&program->uploads, program->num_uploads, sizeof *program->uploads))
        return NULL;
    if (emitter->ops->upload(emitter->backend, host, bytes, &device, &emitter->error) != 0)
        return NULL;
    program->uploads[program->num_uploads++] = device;
    return device;
}

void *emitter_upload_weights(struct emitter *emitter, const void *host, size_t bytes)
{
    for (int as = 0; as < WEIGHT_FORMAT_COUNT; as++)
        emitter->program->weights_bytes[as] += bytes;
    return emitter_upload(emitter, host, bytes);
}

struct table *emitter_table(struct emitter *emitter, const struct matrix *matrix)
{
    struct table *table = NULL;
    if (!emitter_failed(emitter))
        emitter->ops->table_create(emitter->backend, &table, matrix, &emitter->error);
    return table;
}

void emitter_stack_add(struct emitter_stack *stack, const void *part,
                       const struct part_matrix *list, int count, enum matrix_use use,
                       int64_t *columns)
{
    for (int i = 0; i < count; i++) {
        const struct matrix *matrix = part_matrix_of(part, &list[i]);
        if (list[i].use != use || matrix->rows == 0)
            continue;
        if (columns != NULL)
            columns[i] = stack->width;
        stack->width += matrix->rows;
        stack->names[stack->count] = list[i].name;
        stack->parts[stack->count++] = *matrix;
    }
}

/* A matrix as the engine keeps it, without what pads it. */
static double plain_bytes(const struct matrix *matrix, enum weight_format format)
{
    return (double)matrix->rows * (double)matrix->cols / weight_format_block(format) *
           weight_format_bytes(format);
}

enum weight_role { ROLE_USUAL, ROLE_HEADS, ROLE_MODEL_HEAD, ROLE_ROUTER };

/* Matrices that become one weight. */
struct packed {
    const struct matrix *parts;
    int count, heads, num_names;
    const char *const *names; /* [num_names]: of the first ones; experts share them */
    enum weight_role role;
};

static void describe(struct program_weight *weight, const struct packed *of,
                     enum weight_format format)
{
    size_t used = 0;
    if (format == WEIGHTS_AUTO)
        format = packing_format(of->parts, of->count);
    for (int i = 0; i < of->count; i++) {
        weight->rows += of->parts[i].rows;
        weight->cols = of->parts[i].cols;
        weight->bytes += plain_bytes(&of->parts[i], format);
        if (i < of->num_names && used < sizeof weight->name)
            used += (size_t)snprintf(weight->name + used, sizeof weight->name - used, "%s%s",
                                     i > 0 ? "+" : "", of->names[i]);
    }
    weight->heads = of->heads;
    weight->of_heads = of->role == ROLE_HEADS;
}

/* The format of a matrix where those of the model have `format`. */
static enum weight_format format_of(enum weight_format format, enum weight_role role, int heads)
{
    return role == ROLE_HEADS && heads > 1 ? WEIGHTS_AUTO
           : role == ROLE_MODEL_HEAD       ? weight_format_of_head(format)
           : role == ROLE_ROUTER           ? WEIGHTS_EXACT
                                           : format;
}

static void count_packed(struct emitter *emitter, const struct packed *of)
{
    const struct emitter_options *options = emitter->options;
    const int64_t all = emitter->model->parameters;
    for (int i = 0; i < of->count; i++) {
        model_packed(emitter->model, &of->parts[i]);
        emitter->packed += of->parts[i].rows * of->parts[i].cols;
    }
    if (options->progress != NULL && emitter->packed < all)
        options->progress(options->progress_context, (double)emitter->packed / (double)all);
}

static const struct program_weight *pack(struct emitter *emitter, const struct packed *of)
{
    struct program *program = emitter->program;
    const struct ops *ops = emitter->ops;
    const enum weight_format format = format_of(emitter->options->weights, of->role, of->heads);
    if (emitter_failed(emitter) ||
        !grow(emitter, (void **)&program->weights, program->num_weights, sizeof *program->weights))
        return NULL;
    struct program_weight *weight =
        arena_alloc(&program->arena, 1, sizeof *weight, &emitter->error);
    if (weight == NULL || ops->weight_create(emitter->backend, &weight->packed, of->parts,
                                             of->count, of->heads, format, &emitter->error) != 0)
        return NULL;
    program->weights[program->num_weights++] = weight;
    describe(weight, of, format);
    count_packed(emitter, of);
    for (int as = 0; as < WEIGHT_FORMAT_COUNT; as++)
        program->weights_bytes[as] += ops->weight_bytes(
            weight->packed, format_of((enum weight_format)as, of->role, of->heads));
    return weight;
}

static const struct program_weight *
pack_stack(struct emitter *emitter, const struct emitter_stack *stack, enum weight_role role)
{
    return pack(emitter, &(struct packed){.parts = stack->parts,
                                          .count = stack->count,
                                          .heads = 1,
                                          .num_names = stack->count,
                                          .names = stack->names,
                                          .role = role});
}

const struct program_weight *emitter_pack(struct emitter *emitter,
                                          const struct emitter_stack *stack)
{
    return pack_stack(emitter, stack, ROLE_USUAL);
}

static const struct program_weight *pack_one(struct emitter *emitter, const char *name,
                                             const struct matrix *matrix, int heads,
                                             enum weight_role role)
{
    return pack(emitter, &(struct packed){.parts = matrix,
                                          .count = 1,
                                          .heads = heads,
                                          .num_names = 1,
                                          .names = &name,
                                          .role = role});
}

const struct program_weight *emitter_pack_part(struct emitter *emitter, const void *part,
                                               const struct part_matrix *list, int count,
                                               enum matrix_use use)
{
    struct emitter_stack stack = {0};
    emitter_stack_add(&stack, part, list, count, use, NULL);
    return pack_stack(emitter, &stack, use == MATRIX_ROUTER ? ROLE_ROUTER : ROLE_USUAL);
}

const struct program_weight *emitter_pack_experts(struct emitter *emitter,
                                                  const struct mlp *experts, int count,
                                                  const struct part_matrix *row)
{
    struct matrix *parts = calloc((size_t)count, sizeof *parts);
    if (parts == NULL) {
        emitter_no_memory(emitter, "experts");
        return NULL;
    }
    for (int i = 0; i < count; i++)
        parts[i] = *part_matrix_of(&experts[i], row);
    const struct program_weight *weight = pack(emitter, &(struct packed){.parts = parts,
                                                                         .count = count,
                                                                         .heads = count,
                                                                         .num_names = 1,
                                                                         .names = &row->name,
                                                                         .role = ROLE_USUAL});
    free(parts);
    return weight;
}

const struct program_weight *emitter_pack_heads(struct emitter *emitter, const char *name,
                                                const struct matrix *matrix, int heads)
{
    return pack_one(emitter, name, matrix, heads, ROLE_HEADS);
}

const struct program_weight *emitter_pack_head(struct emitter *emitter, const char *name,
                                               const struct matrix *matrix)
{
    return pack_one(emitter, name, matrix, 1, ROLE_MODEL_HEAD);
}

/* ---- operations ---- */

static struct operation *add(struct emitter *emitter, enum operation_kind kind)
{
    struct program *program = emitter->program;
    if (emitter_failed(emitter) || !grow(emitter, (void **)&program->operations,
                                         program->num_operations, sizeof *program->operations))
        return &emitter->nowhere;
    struct operation *operation = &program->operations[program->num_operations++];
    *operation = (struct operation){.kind = kind, .when = emitter->when, .layer = emitter->layer};
    return operation;
}

/* Takes over what the call points to. */
static void keep_pointed(struct operation *operation)
{
    if (operation->kind == OPERATION_MATMUL && operation->matmul.norm != NULL)
        operation->first = *operation->matmul.norm;
    if (operation->kind == OPERATION_RECURRENCE && operation->recurrence.phi.before != NULL)
        operation->before = *operation->recurrence.phi.before;
    if (operation->kind == OPERATION_RECURRENCE && operation->recurrence.phi.after != NULL)
        operation->after = *operation->recurrence.phi.after;
    if (operation->kind == OPERATION_ATTENTION && operation->attention.segments != NULL)
        operation->vectors = *operation->attention.segments;
}

#define EMIT(kind, name, profile, rows)                                         \
    void emitter_##name(struct emitter *emitter, const struct ops_##name *call) \
    {                                                                           \
        struct operation *operation = add(emitter, kind);                       \
        operation->name = *call;                                                \
        keep_pointed(operation);                                                \
    }
OPERATIONS(EMIT)

void emitter_product(struct emitter *emitter, const struct program_weight *weight,
                     const struct ops_matmul *call)
{
    const struct program *program = emitter->program;
    struct ops_matmul product = *call;
    if (weight == NULL) /* it has failed */
        return;
    product.weight = weight->packed;
    emitter_matmul(emitter, &product);
    if (!emitter_failed(emitter))
        program->operations[program->num_operations - 1].weight = weight;
}

/* Those of equal ones; NULL: these are new, and added. */
static const struct emitter_angles *find_angles(struct emitter *emitter, const double *theta,
                                                int count, float factor)
{
    for (int i = 0; i < emitter->num_angles; i++) {
        const struct emitter_angles *known = &emitter->angles[i];
        if (known->count == count && known->factor == factor &&
            memcmp(known->host, theta, (size_t)count * sizeof *theta) == 0)
            return known;
    }
    return NULL;
}

static const struct emitter_angles *add_angles(struct emitter *emitter, const double *theta,
                                               int count, float factor)
{
    if (!grow(emitter, (void **)&emitter->angles, emitter->num_angles, sizeof *emitter->angles))
        return NULL;
    double *host = malloc((size_t)count * sizeof *host);
    if (host == NULL) {
        emitter_no_memory(emitter, "positions");
        return NULL;
    }
    memcpy(host, theta, (size_t)count * sizeof *host);
    struct emitter_angles *angles = &emitter->angles[emitter->num_angles++];
    *angles = (struct emitter_angles){.host = host,
                                      .count = count,
                                      .factor = factor,
                                      .cosines = emitter_rows(emitter, count),
                                      .sines = emitter_rows(emitter, count)};
    emitter_angles(emitter,
                   &(struct ops_angles){
                       .theta = emitter_upload(emitter, host, (size_t)count * sizeof *host),
                       .count = count,
                       .factor = factor,
                       .cosines = angles->cosines,
                       .sines = angles->sines,
                   });
    return angles;
}

void emitter_share_angles(struct emitter *emitter, const double *theta, int count, float factor,
                          struct rows *cosines, struct rows *sines)
{
    if (emitter_failed(emitter))
        return;
    const struct emitter_angles *angles = find_angles(emitter, theta, count, factor);
    if (angles == NULL)
        angles = add_angles(emitter, theta, count, factor);
    if (angles != NULL) {
        *cosines = angles->cosines;
        *sines = angles->sines;
    }
}

/* ---- the end ---- */

/* The weights of a step's products, in their order, but for routed ones, of which a step reads some
 * matrices only. The head's product is there twice, but one step has it once. */
static void list_order(struct emitter *emitter)
{
    struct program *program = emitter->program;
    const struct weight **order =
        calloc((size_t)program->num_operations + 2, sizeof *program->order);
    program->order = order;
    if (order == NULL) {
        emitter_no_memory(emitter, "program");
        return;
    }
    int count = 0;
    for (int i = 0; i < program->num_operations; i++) {
        struct operation *operation = &program->operations[i];
        if (operation->kind != OPERATION_MATMUL || operation->matmul.chosen > 0)
            continue;
        const bool again = count > 0 && order[count - 1] == operation->matmul.weight;
        if (!again)
            order[count++] = operation->matmul.weight;
        operation->matmul.next = order + count;
    }
    order[count] = order[0];
}

/* What each operation changes in slots lies one after the other in a kept row. */
static void place_regions(struct program *program)
{
    enum { LINE = 64 };
    for (int i = 0; i < program->num_operations; i++) {
        struct operation *operation = &program->operations[i];
        operation_find_regions(operation);
        for (int j = 0; j < operation->num_regions; j++) {
            struct operation_region *region = &operation->regions[j];
            region->at = program->kept_bytes;
            program->kept_bytes += ((size_t)region->count * region->bytes + LINE - 1) / LINE * LINE;
        }
    }
}

/* What calls point to is in their operations, which no longer move. */
static void point_inside(struct operation *operation)
{
    if (operation->kind == OPERATION_MATMUL && operation->matmul.norm != NULL)
        operation->matmul.norm = &operation->first;
    if (operation->kind == OPERATION_RECURRENCE && operation->recurrence.phi.before != NULL)
        operation->recurrence.phi.before = &operation->before;
    if (operation->kind == OPERATION_RECURRENCE && operation->recurrence.phi.after != NULL)
        operation->recurrence.phi.after = &operation->after;
    if (operation->kind == OPERATION_ATTENTION && operation->attention.segments != NULL)
        operation->attention.segments = &operation->vectors;
}

int emitter_finish(struct emitter *emitter, struct error *err)
{
    struct program *program = emitter->program;
    if (!emitter_failed(emitter))
        list_order(emitter);
    place_regions(program);
    for (int i = 0; i < program->num_operations; i++)
        point_inside(&program->operations[i]);
    if (!emitter_failed(emitter) && placing_plan(program) != 0)
        error_set(&emitter->error, ERROR_INVALID, "max_step_tokens: the workspace is too large");
    if (!emitter_failed(emitter) && emitter->ops->reserve(emitter->backend, program->memory_bytes,
                                                          &program->memory, &emitter->error) == 0)
        placing_apply(program);
    if (emitter_failed(emitter))
        return error_set(err, emitter->error.code, "%s", emitter->error.message);
    return 0;
}
