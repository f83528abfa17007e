/* SPDX-License-Identifier: Apache-2.0 */
/* What a model costs, whatever the program: the operations and bytes of reading and generating
 * texts, and the longest text that its state memory holds. */
#ifndef ENGINE_COST_H
#define ENGINE_COST_H

#include "engine/engine.h"
#include "engine/model/model.h"

/* `batch` texts that have `depth` tokens already and read, or generate, `tokens` more each. */
struct cost_texts {
    bool generates;
    int tokens, depth, batch;
};

struct cost {
    /* Of generating, 0 for a prompt: every step reads all packed weights once, and for each text
     * its recurrent states (which it also writes) and the keys and values seen, and writes new
     * ones. */
    double weight_bytes, bytes; /* bytes: all of these */
    /* Multiplications and additions of products, recurrences and attention; the vocabulary's for
     * the positions that want logits: the last of a prompt, or each generated. */
    double operations;
};

/* Pure. Uses the sizes of the model, and of info weights_bytes, kv_bytes_per_token and kv. */
struct cost cost_of(const struct model *model, const struct engine_info *info,
                    const struct cost_texts *texts);

/* The longest text (prompt + generated) that the state budget holds and a step of the device takes,
 * in tokens; 0: any. */
int64_t cost_longest_text(const struct engine *engine);

#endif
