/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/decoder.h"

#include "lib/text/token_list.h"
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

int decoder_add_replacement(struct decoder *decoder, struct pattern *pattern, char *content,
                            size_t length, struct error *err)
{
    if (array_grow((void **)&decoder->replacements, &decoder->replacement_capacity,
                   decoder->replacement_count + 1, sizeof *decoder->replacements, err)) {
        pattern_free(pattern);
        free(content);
        return -1;
    }
    decoder->replacements[decoder->replacement_count++] =
        (struct decoder_replacement){pattern, content, length};
    return 0;
}

void decoder_clear(struct decoder *decoder)
{
    for (size_t i = 0; i < decoder->replacement_count; i++) {
        pattern_free(decoder->replacements[i].pattern);
        free(decoder->replacements[i].content);
    }
    free(decoder->replacements);
    free(decoder->by_id);
    free(decoder->respellings);
    text_buffer_clear(&decoder->respelled);
    text_buffer_clear(&decoder->texts);
    *decoder = (struct decoder){0};
}

int decoder_respell(struct decoder *decoder, int32_t id, const char *spelling, size_t length,
                    struct error *err)
{
    size_t offset = decoder->respelled.length;
    if (array_grow((void **)&decoder->respellings, &decoder->respelling_capacity,
                   decoder->respelling_count + 1, sizeof *decoder->respellings, err) ||
        text_buffer_append(&decoder->respelled, spelling, length, err))
        return -1;
    decoder->respellings[decoder->respelling_count++] =
        (struct decoder_respelling){id, offset, length};
    return 0;
}

/* The bytes a token spells in GPT-2's alphabet, or its own when it is not of that alphabet. */
static int append_byte_level(const char *content, size_t length, struct text_buffer *out,
                             struct error *err)
{
    if (text_buffer_reserve(out, length, err))
        return -1;
    size_t start = out->length;
    for (size_t at = 0, used; at < length; at += used) {
        int byte = byte_level_byte(utf8_decode(content + at, &used));
        if (byte < 0) {
            out->length = start;
            return text_buffer_append(out, content, length, err);
        }
        out->data[out->length++] = (char)byte;
    }
    return 0;
}

/* content with every `what` replaced by `with`. */
static int append_replaced(const char *content, size_t length, const char *what, const char *with,
                           struct text_buffer *out, struct error *err)
{
    size_t what_length = strlen(what), at = 0;
    const char *found;
    while ((found = memmem(content + at, length - at, what, what_length))) {
        size_t start = (size_t)(found - content);
        if (text_buffer_append(out, content + at, start - at, err) ||
            text_buffer_append(out, with, strlen(with), err))
            return -1;
        at = start + what_length;
    }
    return text_buffer_append(out, content + at, length - at, err);
}

/* One Replace over scratch[0], through scratch[1], which takes at most `most` bytes. */
static int apply_replacement(const struct decoder_replacement *replacement, size_t most,
                             struct text_buffer scratch[2], struct span_list *matches,
                             struct error *err)
{
    matches->count = 0;
    if (pattern_find_all(replacement->pattern, scratch[0].data, scratch[0].length, matches, err))
        return -1;
    size_t length = scratch[0].length + matches->count * replacement->length;
    for (size_t i = 0; i < matches->count; i++)
        length -= matches->items[i].end - matches->items[i].start;
    if (length > most)
        return error_set(err, ERROR_INVALID, "expected at most %zu bytes, got %zu", most, length);
    scratch[1].length = 0;
    size_t at = 0;
    for (size_t i = 0; i < matches->count; i++) {
        if (text_buffer_append(&scratch[1], scratch[0].data + at, matches->items[i].start - at,
                               err) ||
            text_buffer_append(&scratch[1], replacement->content, replacement->length, err))
            return -1;
        at = matches->items[i].end;
    }
    if (text_buffer_append(&scratch[1], scratch[0].data + at, scratch[0].length - at, err))
        return -1;
    struct text_buffer done = scratch[0];
    scratch[0] = scratch[1];
    scratch[1] = done;
    return 0;
}

static int append_steps(const struct decoder *decoder, const char *content, size_t length,
                        struct text_buffer *out, struct error *err)
{
    struct text_buffer scratch[2] = {{0}};
    struct span_list matches = {0};
    int failed = text_buffer_append(&scratch[0], content, length, err);
    const size_t most = 16 * length + 4096;
    for (size_t i = 0; !failed && i < decoder->replacement_count && scratch[0].length > 0; i++)
        if (apply_replacement(&decoder->replacements[i], most, scratch, &matches, err))
            failed = error_prefix(err, "decoder: \"%.60s\"", content);
    if (!failed)
        failed = text_buffer_append(out, scratch[0].data, scratch[0].length, err);
    text_buffer_clear(&scratch[0]);
    text_buffer_clear(&scratch[1]);
    span_list_clear(&matches);
    return failed ? -1 : 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'                     ? c - '0'
           : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                    : -1;
}

/* The byte of "<0xAB>", or -1. (The library reads "<0x+A>" as one too.) */
static int fallback_byte(const char *text, size_t length)
{
    if (length != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    int high = text[3] == '+' ? 0 : hex_digit(text[3]);
    int low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static int prepare_token(struct decoder *decoder, int32_t id, struct error *err)
{
    struct decoder_token *decoded = &decoder->by_id[id];
    const char *content = decoded->spelling;
    size_t length = decoded->spelling_length;
    struct text_buffer *texts = &decoder->texts;
    size_t offset = texts->length;
    int failed = 0;
    switch (decoder->kind) {
    case DECODER_NONE:
        failed = text_buffer_append(texts, content, length, err);
        break;
    case DECODER_BYTE_LEVEL:
        failed = append_byte_level(content, length, texts, err);
        break;
    case DECODER_METASPACE:
        failed = append_replaced(content, length, decoder->metaspace, " ", texts, err);
        break;
    case DECODER_STEPS:
        failed = append_steps(decoder, content, length, texts, err);
        break;
    }
    if (failed)
        return -1;
    if (texts->length > UINT32_MAX)
        return error_set(err, ERROR_INVALID, "decoder: the tokens have more than 4 GiB of text");
    decoded->offset = (uint32_t)offset;
    decoded->length = (uint32_t)(texts->length - offset);
    decoded->byte = -1;
    /* The library looks for the spelling among the contents of special tokens. */
    int32_t same = vocabulary_find(decoder->tokens, content, length);
    decoded->skipped = same >= 0 && decoder->tokens->tokens[same].flags & TOKEN_SPECIAL;
    if (decoder->byte_fallback && decoded->length == 6) {
        int byte = fallback_byte(texts->data + offset, decoded->length);
        if (byte >= 0) {
            decoded->byte = (int16_t)byte;
            texts->data[offset] = (char)byte;
            texts->length = offset + (decoded->length = 1);
        }
    }
    return 0;
}

int decoder_prepare(struct decoder *decoder, const struct vocabulary *tokens, struct error *err)
{
    decoder->tokens = tokens;
    decoder->by_id = calloc((size_t)tokens->size + 1, sizeof *decoder->by_id);
    if (!decoder->by_id)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %d tokens", tokens->size);
    for (int32_t id = 0; id < tokens->size; id++)
        if (vocabulary_knows(tokens, id)) {
            decoder->by_id[id].spelling = vocabulary_content(tokens, id);
            decoder->by_id[id].spelling_length = tokens->tokens[id].length;
        }
    for (size_t i = 0; i < decoder->respelling_count; i++) {
        const struct decoder_respelling *respelling = &decoder->respellings[i];
        struct decoder_token *token = &decoder->by_id[respelling->id];
        token->spelling = decoder->respelled.data + respelling->offset;
        token->spelling_length = (uint32_t)respelling->length;
    }
    for (int32_t id = 0; id < tokens->size; id++)
        if (vocabulary_knows(tokens, id) && prepare_token(decoder, id, err))
            return -1;
    return 0;
}

/* Text that is final but for Strip, which takes up to strip_count characters off the start. */
static int emit(struct decode_run *run, const char *text, size_t length, struct error *err)
{
    const struct decoder *decoder = run->decoder;
    size_t strip_length = strlen(decoder->strip);
    while (!run->stripped && length > 0) {
        run->stripped = run->strip_done == decoder->strip_count || length < strip_length ||
                        memcmp(text, decoder->strip, strip_length) != 0;
        if (!run->stripped) {
            run->strip_done++;
            text += strip_length;
            length -= strip_length;
        }
    }
    return text_buffer_append(&run->out, text, length, err);
}

static void drop_pending(struct decode_run *run, size_t length)
{
    if (length == 0)
        return;
    run->pending.length -= length;
    memmove(run->pending.data, run->pending.data + length, run->pending.length);
}

/* Byte-level: hands out the characters that are whole. An unfinished one stays until `all`. */
static int drain_bytes(struct decode_run *run, bool all, struct error *err)
{
    const char *data = run->pending.data;
    size_t length = run->pending.length, at = 0;
    while (at < length) {
        size_t start = at, used = 0;
        enum utf8_state state = UTF8_VALID;
        while (at < length && (state = utf8_next(data + at, length - at, &used)) == UTF8_VALID)
            at += used;
        if (emit(run, data + start, at - start, err))
            return -1;
        if (state == UTF8_VALID || (state == UTF8_PARTIAL && !all))
            break;
        if (emit(run, REPLACEMENT, 3, err))
            return -1;
        at += used;
    }
    drop_pending(run, at);
    return 0;
}

/* ByteFallback: a run of bytes is a text, or else as many U+FFFD. */
static int drain_fallback(struct decode_run *run, struct error *err)
{
    size_t length = run->pending.length;
    if (length == 0)
        return 0;
    int failed = 0;
    if (utf8_valid_length(run->pending.data, length) == length)
        failed = emit(run, run->pending.data, length, err);
    else
        for (size_t i = 0; i < length && !failed; i++)
            failed = emit(run, REPLACEMENT, 3, err);
    run->pending.length = run->whole = run->characters = 0;
    return failed;
}

/* ByteFallback: one byte more of the run. */
static int hold_byte(struct decode_run *run, const char *byte, struct error *err)
{
    if (text_buffer_append(&run->pending, byte, 1, err))
        return -1;
    run->lead_characters = run->characters;
    size_t used;
    if (utf8_next(run->pending.data + run->whole, run->pending.length - run->whole, &used) ==
        UTF8_VALID) {
        run->whole += used;
        run->characters++;
    }
    return 0;
}

/* What the run reads for an id; NULL: nothing. */
static const struct decoder_token *token_of(const struct decode_run *run, int32_t id)
{
    const struct decoder *decoder = run->decoder;
    const struct decoder_token *token =
        vocabulary_knows(decoder->tokens, id) ? &decoder->by_id[id] : NULL;
    bool skipped = token && run->skip_special_tokens && token->skipped;
    return skipped && !token_list_contains(run->kept, run->num_kept, id) ? NULL : token;
}

int decode_run_prime(struct decode_run *run, const int32_t *ids, size_t count, struct error *err)
{
    /* So many tokens hold any unfinished character, and with those a run of ByteFallback's. */
    int wanted = 4;
    size_t from = count;
    while (from > 0 && wanted > 0) {
        const struct decoder_token *token = token_of(run, ids[--from]);
        wanted -= token && token->byte < 0;
    }
    for (size_t i = from; i < count; i++)
        if (decode_run_push(run, ids[i], err))
            return -1;
    /* Whole characters are the prompt's; one that is unfinished, and nothing else, may go on. */
    const char *rest = run->pending.data;
    size_t whole = utf8_valid_length(rest, run->pending.length), used;
    size_t left = run->pending.length - whole;
    bool unfinished = left > 0 && utf8_next(rest + whole, left, &used) == UTF8_PARTIAL;
    drop_pending(run, unfinished ? whole : run->pending.length);
    run->out.length = 0;
    run->lead_bytes = run->lead_characters = 0;
    run->whole = run->characters = 0;
    return 0;
}

int decode_run_push(struct decode_run *run, int32_t id, struct error *err)
{
    const struct decoder *decoder = run->decoder;
    const struct decoder_token *token = token_of(run, id);
    run->lead_bytes = run->lead_characters = 0;
    if (!token)
        return 0;
    bool first = !run->started;
    run->started = true;
    const char *text = decoder->texts.data + token->offset;
    switch (decoder->kind) {
    case DECODER_NONE:
        if (!first && text_buffer_append(&run->out, " ", 1, err))
            return -1;
        return text_buffer_append(&run->out, text, token->length, err);
    case DECODER_BYTE_LEVEL:
        if (text_buffer_append(&run->pending, text, token->length, err))
            return -1;
        return drain_bytes(run, false, err);
    case DECODER_METASPACE:
        if (first && decoder->metaspace_prepends)
            return append_replaced(token->spelling, token->spelling_length, decoder->metaspace, "",
                                   &run->out, err);
        return text_buffer_append(&run->out, text, token->length, err);
    case DECODER_STEPS:
        if (token->byte >= 0)
            return hold_byte(run, text, err);
        if (drain_fallback(run, err))
            return -1;
        run->lead_bytes = run->out.length;
        return emit(run, text, token->length, err);
    }
    return error_set(err, ERROR_INTERNAL, "tokenizer: a decoder of kind %d", decoder->kind);
}

size_t decode_run_lead(const struct decode_run *run)
{
    return utf8_characters(run->out.data, run->lead_bytes) + run->lead_characters;
}

int decode_run_finish(struct decode_run *run, struct error *err)
{
    if (run->decoder->kind == DECODER_BYTE_LEVEL)
        return drain_bytes(run, true, err);
    return drain_fallback(run, err);
}

void decode_run_clear(struct decode_run *run)
{
    text_buffer_clear(&run->pending);
    text_buffer_clear(&run->out);
}
