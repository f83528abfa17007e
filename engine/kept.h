/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens that texts may go back over (engine_go_back).
 *
 * Keys and values in pages stay as they are, since a text reads only those before its position. For
 * each kept row what it changes in the text's slot is copied before: so going back puts the rows'
 * copies back, the last one first. The memory is that of one step. */
#ifndef ENGINE_KEPT_H
#define ENGINE_KEPT_H

#include "engine/engine_types.h"
#include "engine/program/program.h"
#include "engine/span.h"

struct kept_text {
    const struct state *state;
    int64_t end; /* its position behind the span */
    int rows;
    const char *memory; /* [rows] of program->kept_bytes */
};

struct kept {
    const struct program *program;
    int max_rows;            /* 0: there are none */
    char *memory;            /* [max_rows] of program->kept_bytes, on the device */
    struct kept_text *texts; /* [num_texts], of the last step */
    int num_texts;
    struct batch_span *spans; /* [max_step_tokens]: of all parts, one after the other */
    struct batch_part parts[ENGINE_MOST_KEPT + 1];
};

/* The caller closes it in every case. */
int kept_open(struct kept *kept, const struct program *program, const struct engine_info *info,
              bool poison, struct error *err);
void kept_close(struct kept *kept);

/* Whether spans ask for what they may. */
int kept_check(const struct kept *kept, const struct span *spans, int num_spans, bool alone,
               struct error *err);
/* A step begins: cuts its spans into parts, if any rows are kept. */
void kept_begin(struct kept *kept, const struct span *spans, struct batch *batch);
/* engine_go_back */
int kept_go_back(struct kept *kept, struct state *state, int rows, struct error *err);

#endif
