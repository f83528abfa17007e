/* SPDX-License-Identifier: Apache-2.0 */
/* What a test of `regla bench` needs, whatever the program: the bytes that must move and the
 * operations that must be done. Pure. */
#ifndef ENGINE_COST_H
#define ENGINE_COST_H

#include "bench/bench_plan.h"
#include "engine/engine.h"
#include "engine/model/model.h"

struct bench_need {
    /* Of generating, 0 for a prompt: every step reads all packed weights once, and for each text
     * its recurrent states (which it also writes) and the keys and values seen, and writes new
     * ones. */
    double weight_bytes, bytes; /* bytes: all of these */
    /* Multiplications and additions of products, recurrences and attention; the vocabulary's for
     * the positions that want logits: the last of a prompt, or each generated. */
    double operations;
};

/* Uses the sizes of the model, and of info weights_bytes, kv_bytes_per_token and kv. */
struct bench_need bench_need(const struct model *model, const struct engine_info *info,
                             const struct bench_case *test);

#endif
