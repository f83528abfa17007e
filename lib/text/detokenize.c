/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/detokenize.h"

#include "lib/text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

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

static int append(char **text, size_t *length, const char *more, size_t more_length,
                  struct error *err)
{
    char *grown = realloc(*text, *length + more_length + 1);
    if (!grown)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a text");
    if (more_length)
        memcpy(grown + *length, more, more_length);
    *text = grown;
    *length += more_length;
    grown[*length] = 0;
    return 0;
}

/* Notes that the text ends with what the token spells, if it is a special one. */
static int note_special(struct span_list *special, const struct tokenizer *tokenizer, int32_t id,
                        const char *text, size_t length, struct error *err)
{
    const char *content =
        tokenizer_is_special(tokenizer, id) ? tokenizer_token_content(tokenizer, id) : NULL;
    size_t bytes = content ? strlen(content) : 0;
    if (bytes == 0 || bytes > length || memcmp(text + length - bytes, content, bytes) != 0)
        return 0;
    return span_list_push(special, length - bytes, length, err);
}

int detokenizer_behind(const struct tokenizer *tokenizer, const int32_t *before, size_t num_before,
                       const int32_t *ids, size_t count, char **text, size_t *length,
                       struct span_list *special, struct error *err)
{
    struct detokenizer *detokenizer = NULL;
    const char *more = "";
    size_t more_length = 0;
    *text = NULL;
    *length = 0;
    int result = detokenizer_create(&detokenizer, tokenizer, false, err);
    if (result == 0)
        result = detokenizer_prime(detokenizer, before, num_before, err);
    for (size_t i = 0; i < count && result == 0; i++) {
        result = detokenizer_push(detokenizer, ids[i], &more, &more_length, err);
        if (result == 0)
            result = append(text, length, more, more_length, err);
        if (result == 0)
            result = note_special(special, tokenizer, ids[i], *text, *length, err);
    }
    if (result == 0)
        result = detokenizer_finish(detokenizer, &more, &more_length, err);
    if (result == 0)
        result = append(text, length, more, more_length, err);
    detokenizer_free(detokenizer);
    if (result != 0) {
        free(*text);
        *text = NULL;
    }
    return result;
}
