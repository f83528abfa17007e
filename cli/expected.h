/* SPDX-License-Identifier: Apache-2.0 */
/* Reads expected.json: the answers that a checkpoint must give (tests/golden/README.md). */
#ifndef CLI_EXPECTED_H
#define CLI_EXPECTED_H

#include "engine/ops/sampler.h"
#include "lib/base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { EXPECTED_TOP = 5 };

struct expected {
    int32_t *prompt;           /* [num_prompt], >= 1 */
    float *prompt_logprobs;    /* [num_prompt - 1]: log p of prompt[i + 1] after prompt[0..i] */
    struct token_logprob *top; /* [num_prompt, EXPECTED_TOP]: the best after each position */
    int32_t *greedy;           /* [num_greedy] */
    float *greedy_margin;      /* [num_greedy]: best minus second log-probability */
    size_t num_prompt, num_greedy;
    double tolerance; /* absolute, on log-probabilities, in the formats of a run without flags */
    double tolerance_f32; /* when KV is f32; the file may omit it when it is the same */
};

/* Reads directory/expected.json; every id is in [0, vocab_size). The caller clears *out. */
int expected_open(struct expected *out, const char *directory, int32_t vocab_size,
                  struct error *err);
void expected_clear(struct expected *expected);

#endif
