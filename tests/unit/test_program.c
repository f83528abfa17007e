/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of all golden cases: that buffers which share memory are not in use at the same time,
 * that nothing reads what no operation has written, and that every operation stays in its buffers.
 */
#include "engine/model/model.h"
#include "engine/program/program.h"
#include "tests/unit/golden_cases.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static struct engine *open_case(const char *path)
{
    const struct engine_options options = {
        .threads = 1, .max_step_tokens = 64, .state_memory_bytes = (size_t)32 << 20};
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    cr_assert(engine_open(&engine, path, &options, &err) == 0, "%s", err.message);
    return engine;
}

static size_t bytes_of(const struct program_buffer *buffer)
{
    return (size_t)buffer->stride * sizeof(float) * (size_t)buffer->num_rows;
}

static bool meet(size_t a, size_t a_size, size_t b, size_t b_size)
{
    return a < b + b_size && b < a + a_size;
}

Test(program, buffers_of_one_time_have_memory_of_their_own)
{
    char path[512], name[256];
    for (int i = 0; golden_case(i, path, name); i++) {
        struct engine *engine = open_case(path);
        const struct program *program = engine_program(engine);
        size_t sum = 0;
        for (int a = 0; a < program->num_buffers; a++) {
            const struct program_buffer *one = &program->buffers[a];
            sum += bytes_of(one);
            cr_expect(one->offset % 64 == 0, "%s: b%d", name, a);
            cr_expect(one->offset + bytes_of(one) <= program->memory_bytes, "%s: b%d", name, a);
            for (int b = 0; b < a; b++) {
                const struct program_buffer *other = &program->buffers[b];
                const bool together = one->first <= other->last && other->first <= one->last;
                cr_expect(!together ||
                              !meet(one->offset, bytes_of(one), other->offset, bytes_of(other)),
                          "%s: b%d and b%d", name, a, b);
            }
        }
        cr_expect(program->memory_bytes < sum, "%s: nothing is shared", name);
        engine_close(engine);
    }
}

struct checked {
    const struct program *program;
    const char *name;
    int operation;
    bool *written; /* [num_buffers] */
};

static void check(void *context, struct rows *rows, int access)
{
    struct checked *checked = context;
    int64_t column;
    const int buffer = program_buffer_of(checked->program, checked->operation, rows, &column);
    cr_assert(buffer >= 0, "%s: operation %d", checked->name, checked->operation);
    cr_expect(column < checked->program->buffers[buffer].width, "%s: operation %d", checked->name,
              checked->operation);
    cr_expect(rows->stride == checked->program->buffers[buffer].stride, "%s: operation %d",
              checked->name, checked->operation);
    if (access & ACCESS_READS)
        cr_expect(checked->written[buffer], "%s: operation %d reads b%d", checked->name,
                  checked->operation, buffer);
    if (access & ACCESS_WRITES)
        checked->written[buffer] = true;
}

Test(program, nothing_is_read_before_it_is_written)
{
    char path[512], name[256];
    for (int i = 0; golden_case(i, path, name); i++) {
        struct engine *engine = open_case(path);
        const struct program *program = engine_program(engine);
        bool *written = calloc((size_t)program->num_buffers, sizeof *written);
        cr_assert_not_null(written);
        for (int o = 0; o < program->num_operations; o++) {
            struct operation *operation = &program->operations[o];
            struct checked checked = {program, name, o, written};
            operation_each_rows(operation, check, &checked);
        }
        free(written);
        engine_close(engine);
    }
}

/* Each product is followed, for who reads ahead, by those that are left, and the step's first. */
Test(program, products_know_what_follows)
{
    struct engine *engine = open_case(GOLDEN_DIRECTORY "blocks_branches");
    const struct program *program = engine_program(engine);
    const struct weight *first = NULL, *const *expected = program->order;
    for (int i = 0; i < program->num_operations; i++) {
        const struct operation *operation = &program->operations[i];
        if (operation->kind != OPERATION_MATMUL || operation->when == WHEN_ALL_LOGITS)
            continue;
        if (first == NULL)
            first = operation->matmul.weight;
        cr_expect_eq(*expected++, operation->matmul.weight);
        cr_expect_eq(operation->matmul.next, expected);
    }
    cr_expect_eq(expected[0], first);
    cr_expect_null(expected[1]);
    engine_close(engine);
}
