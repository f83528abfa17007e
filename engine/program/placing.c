/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/program/placing.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(uintptr_t) == 8, "a buffer's number is in the upper half of an address");

static int buffer_of(const struct rows *rows)
{
    return (int)((uintptr_t)rows->data >> PLACING_COLUMN_BITS) - 1;
}

struct user {
    struct program *program;
    int operation;
};

static void use(void *context, struct rows *rows, int access)
{
    const struct user *user = context;
    (void)access;
    const int number = buffer_of(rows);
    assert(number >= 0 && number < user->program->num_buffers);
    struct program_buffer *buffer = &user->program->buffers[number];
    if (user->operation < buffer->first)
        buffer->first = user->operation;
    if (user->operation > buffer->last)
        buffer->last = user->operation;
}

/* False: it is more than a size can say. */
static bool bytes_of(const struct program_buffer *buffer, size_t *bytes)
{
    if (__builtin_mul_overflow((size_t)buffer->stride * sizeof(float), (size_t)buffer->num_rows,
                               bytes) ||
        *bytes > SIZE_MAX / 4)
        return false;
    *bytes = (*bytes + 63) & ~(size_t)63;
    return true;
}

/* A buffer that is to be placed, or was. */
struct placed {
    struct program_buffer *buffer;
    size_t bytes;
};

/* Those that are used first; of these the largest. */
static int compare(const void *a, const void *b)
{
    const struct placed *left = a, *right = b;
    if (left->buffer->first != right->buffer->first)
        return left->buffer->first < right->buffer->first ? -1 : 1;
    return left->bytes == right->bytes ? 0 : left->bytes > right->bytes ? -1 : 1;
}

/* At the lowest offset where none is that is used still. These, *count of them, stand in the order
 * of their offsets; it is put among them, and those that are used no more leave. Returns its end.
 */
static size_t place(struct placed *used, int *count, struct placed next)
{
    size_t offset = 0;
    int left = 0, at = -1;
    for (int i = 0; i < *count; i++)
        if (used[i].buffer->last >= next.buffer->first)
            used[left++] = used[i];
    for (int i = 0; i < left && at < 0; i++) {
        if (offset + next.bytes <= used[i].buffer->offset)
            at = i;
        else
            offset = used[i].buffer->offset + used[i].bytes;
    }
    if (at < 0)
        at = left;
    next.buffer->offset = offset;
    memmove(&used[at + 1], &used[at], (size_t)(left - at) * sizeof *used);
    used[at] = next;
    *count = left + 1;
    return offset + next.bytes;
}

int placing_plan(struct program *program)
{
    const int count = program->num_buffers;
    for (int i = 0; i < program->num_operations; i++)
        operation_each_rows(&program->operations[i], use, &(struct user){program, i});
    struct placed *todo = calloc((size_t)count * 2 + 1, sizeof *todo), *done = todo + count;
    if (todo == NULL)
        return -1;
    int found = 0, used = 0, result = 0;
    for (int i = 0; i < count && result == 0; i++) {
        struct program_buffer *buffer = &program->buffers[i];
        size_t bytes;
        if (buffer->last < buffer->first)
            continue;
        if (!bytes_of(buffer, &bytes))
            result = -1;
        else
            todo[found++] = (struct placed){buffer, bytes};
    }
    qsort(todo, (size_t)found, sizeof *todo, compare);
    program->memory_bytes = 0;
    for (int i = 0; i < found && result == 0; i++) {
        const size_t end = place(done, &used, todo[i]);
        if (end > program->memory_bytes)
            program->memory_bytes = end;
        if (end > SIZE_MAX / 4)
            result = -1;
    }
    free(todo);
    return result;
}

static void apply(void *context, struct rows *rows, int access)
{
    struct program *program = context;
    (void)access;
    const size_t column = (uintptr_t)rows->data & (((uintptr_t)1 << PLACING_COLUMN_BITS) - 1);
    char *begin = (char *)program->memory + program->buffers[buffer_of(rows)].offset;
    rows->data = (float *)(void *)(begin + column);
}

void placing_apply(struct program *program)
{
    for (int i = 0; i < program->num_operations; i++)
        operation_each_rows(&program->operations[i], apply, program);
    apply(program, &program->logits, ACCESS_READS);
    if (program->hidden.data != NULL)
        apply(program, &program->hidden, ACCESS_READS);
}
