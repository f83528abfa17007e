/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/kept.h"

#include "engine/state.h"
#include "engine/state_memory.h"
#include "lib/base/bytes.h"

#include <math.h>
#include <stdlib.h>

_Static_assert((int)ENGINE_MOST_KEPT == (int)OPS_MOST_KEPT, "parts have room for a text's rows");

int kept_open(struct kept *kept, const struct program *program, const struct engine_info *info,
              bool poison, struct error *err)
{
    void *memory = NULL;
    size_t bytes;
    *kept = (struct kept){.program = program};
    if (info->max_step_kept == 0)
        return 0;
    kept->texts = calloc((size_t)info->max_step_kept, sizeof *kept->texts);
    kept->spans = calloc((size_t)info->max_step_tokens, sizeof *kept->spans);
    if (kept->texts == NULL || kept->spans == NULL ||
        !size_mul((size_t)info->max_step_kept, program->kept_bytes, &bytes))
        return error_set(err, ERROR_NO_MEMORY, "max_step_kept: no memory for %d rows",
                         info->max_step_kept);
    if (bytes > 0 && program->ops->reserve(program->backend, bytes, &memory, err) != 0)
        return -1;
    kept->memory = memory;
    kept->max_rows = info->max_step_kept;
    if (poison && bytes > 0)
        program->ops->fill(program->backend, memory, NAN, bytes / sizeof(float));
    return 0;
}

void kept_close(struct kept *kept)
{
    if (kept->memory != NULL)
        kept->program->ops->release(kept->program->backend, kept->memory,
                                    (size_t)kept->max_rows * kept->program->kept_bytes);
    free(kept->texts);
    free(kept->spans);
}

int kept_check(const struct kept *kept, const struct span *spans, int num_spans, bool alone,
               struct error *err)
{
    int64_t rows = 0;
    for (int i = 0; i < num_spans; i++) {
        const struct span *span = &spans[i];
        const int most =
            span->num_tokens > ENGINE_MOST_KEPT ? ENGINE_MOST_KEPT : span->num_tokens - 1;
        if (span->num_kept < 0 || span->num_kept > most)
            return error_set(err, ERROR_INVALID, "spans[%d]: expected 0 to %d kept tokens, got %d",
                             i, most, span->num_kept);
        rows += span->num_kept;
    }
    if (rows > kept->max_rows)
        return error_set(err, ERROR_INVALID, "a step has at most %d kept tokens, got %lld",
                         kept->max_rows, (long long)rows);
    if (!alone && (rows > 0 || kept->num_texts > 0))
        return error_set(err, ERROR_INVALID, "steps with kept tokens have none beside them");
    return 0;
}

/* Part 0 of a span without its kept rows; part p is kept row p - 1. */
static struct batch_span cut(const struct batch_span *span, int kept, int part, char *memory)
{
    struct batch_span out = *span;
    const int before = span->num_rows - kept;
    if (part == 0) {
        out.num_rows = before;
        return out;
    }
    out.first_row += before + part - 1;
    out.position += before + part - 1;
    out.num_rows = 1;
    out.kept = memory;
    return out;
}

void kept_begin(struct kept *kept, const struct span *spans, struct batch *batch)
{
    const size_t row_bytes = kept->program->kept_bytes;
    struct batch_span *next = kept->spans;
    size_t rows = 0;
    int most = 0;
    kept->num_texts = 0;
    for (int i = 0; i < batch->num_spans; i++) {
        const struct span *span = &spans[i];
        if (span->num_kept == 0)
            continue;
        kept->texts[kept->num_texts++] =
            (struct kept_text){.state = span->state,
                               .end = span->state->position + span->num_tokens,
                               .rows = span->num_kept,
                               .memory = kept->memory + rows * row_bytes};
        rows += (size_t)span->num_kept;
        most = span->num_kept > most ? span->num_kept : most;
    }
    if (most == 0)
        return;
    for (int part = 0; part <= most; part++) {
        struct batch_part *out = &kept->parts[part];
        size_t first = 0; /* of the span's rows in memory */
        *out = (struct batch_part){.spans = next};
        for (int i = 0; i < batch->num_spans; i++) {
            const size_t row = first + (size_t)(part > 0 ? part - 1 : 0);
            if (part <= spans[i].num_kept)
                *next++ =
                    cut(&batch->spans[i], spans[i].num_kept, part, kept->memory + row * row_bytes);
            first += (size_t)spans[i].num_kept;
        }
        out->num_spans = (int)(next - out->spans);
    }
    batch->parts = kept->parts;
    batch->num_parts = most + 1;
}

int kept_go_back(struct kept *kept, struct state *state, int rows, struct error *err)
{
    for (int i = 0; i < kept->num_texts; i++) {
        struct kept_text *text = &kept->texts[i];
        if (text->state != state || text->end != state->position)
            continue;
        if (rows < 0 || rows > text->rows)
            return error_set(err, ERROR_INVALID, "expected 0 to %d tokens to go back over, got %d",
                             text->rows, rows);
        for (int row = text->rows - 1; row >= text->rows - rows; row--)
            program_go_back(kept->program, state->slot, text->end - (text->rows - row),
                            text->memory + (size_t)row * kept->program->kept_bytes);
        state->position -= rows;
        state_shrink(state, state->position);
        text->state = NULL;
        return 0;
    }
    return error_set(err, ERROR_INVALID, "the last step has kept no tokens of this text");
}
