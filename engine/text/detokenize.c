/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/detokenize.h"

#include "engine/text/tokenizer_parts.h"

#include <stdlib.h>

struct detokenizer {
    struct decode_run run;
};

int detokenizer_create(struct detokenizer **out, const struct tokenizer *tokenizer,
                       bool skip_special_tokens, struct error *err)
{
    struct detokenizer *detokenizer = calloc(1, sizeof *detokenizer);
    if (!detokenizer)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a detokenizer");
    detokenizer->run.decoder = &tokenizer->decoder;
    detokenizer->run.skip_special_tokens = skip_special_tokens;
    *out = detokenizer;
    return 0;
}

void detokenizer_free(struct detokenizer *detokenizer)
{
    if (!detokenizer)
        return;
    decode_run_clear(&detokenizer->run);
    free(detokenizer);
}

void detokenizer_keep(struct detokenizer *detokenizer, const int32_t *ids, size_t count)
{
    detokenizer->run.kept = ids;
    detokenizer->run.num_kept = count;
}

static void hand_out(const struct detokenizer *detokenizer, const char **text, size_t *length)
{
    *length = detokenizer->run.out.length;
    *text = *length ? detokenizer->run.out.data : "";
}

int detokenizer_push(struct detokenizer *detokenizer, int32_t id, const char **text, size_t *length,
                     struct error *err)
{
    detokenizer->run.out.length = 0;
    int failed = decode_run_push(&detokenizer->run, id, err);
    hand_out(detokenizer, text, length);
    return failed;
}

int detokenizer_prime(struct detokenizer *detokenizer, const int32_t *ids, size_t count,
                      struct error *err)
{
    return decode_run_prime(&detokenizer->run, ids, count, err);
}

size_t detokenizer_lead(const struct detokenizer *detokenizer)
{
    return decode_run_lead(&detokenizer->run);
}

int detokenizer_finish(struct detokenizer *detokenizer, const char **text, size_t *length,
                       struct error *err)
{
    detokenizer->run.out.length = 0;
    int failed = decode_run_finish(&detokenizer->run, err);
    hand_out(detokenizer, text, length);
    return failed;
}

size_t detokenizer_pending(const struct detokenizer *detokenizer)
{
    return detokenizer->run.pending.length;
}
