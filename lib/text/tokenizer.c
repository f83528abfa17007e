/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/tokenizer.h"

#include "lib/text/tokenizer_parts.h"
#include "lib/text/unicode.h"

#include <string.h>

enum { MAX_TEXT_BYTES = 1 << 28 };

/* What one call of tokenizer_encode works with. */
struct encoder {
    const struct tokenizer *tokenizer;
    struct pieces pieces;
    struct bpe_scratch scratch;
    struct unigram_scratch unigram;
    bool no_special; /* special tokens are not made of characters */
    struct text_buffer normal[2];
    const struct text_span *input; /* [num_input]: of the whole text */
    size_t num_input;
    size_t next_input; /* the first that ends behind the section at hand */
    struct normalizer_marks marks;
    struct token_list *ids;
    struct error *err;
};

static int encode_piece(struct encoder *encoder, const char *piece, size_t length)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    switch (tokenizer->model) {
    case MODEL_BPE:
        return bpe_encode(&tokenizer->bpe, piece, length, &encoder->scratch, encoder->ids,
                          encoder->err);
    case MODEL_UNIGRAM:
        return unigram_encode(&tokenizer->unigram, piece, length, encoder->no_special,
                              &encoder->unigram, encoder->ids, encoder->err);
    case MODEL_WORLD:
        return world_encode(&tokenizer->world, piece, length, encoder->ids, encoder->err);
    }
    return error_set(encoder->err, ERROR_INTERNAL, "tokenizer: a model of kind %d",
                     tokenizer->model);
}

/* Text without added tokens. */
static int encode_plain(struct encoder *encoder, const char *text, size_t length, bool at_start)
{
    struct pieces *pieces = &encoder->pieces;
    if (pretokenize(&encoder->tokenizer->pretokenizer, text, length, at_start, pieces,
                    encoder->err))
        return -1;
    for (size_t i = 0; i < pieces->spans.count; i++) {
        struct text_span span = pieces->spans.items[i];
        if (encode_piece(encoder, pieces->text + span.start, span.end - span.start))
            return -1;
    }
    return 0;
}

/* Takes what of the section is input. Sections come in order. */
static int take_input(struct encoder *encoder, const struct section *section)
{
    struct span_list *input = &encoder->marks.input;
    input->count = 0;
    while (encoder->next_input < encoder->num_input &&
           encoder->input[encoder->next_input].end <= section->start)
        encoder->next_input++;
    for (size_t i = encoder->next_input; i < encoder->num_input; i++) {
        const struct text_span *span = &encoder->input[i];
        if (span->start >= section->end)
            break;
        if (span_list_push(input, span->start, span->end, encoder->err))
            return -1;
    }
    span_list_cut(input, section->start, section->end);
    return 0;
}

/* Text without the added tokens that are looked for before it is normalized. */
static int encode_section(struct encoder *encoder, const char *text, const struct section *section)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    struct section_reader reader = {.tokens = &tokenizer->normalized_tokens,
                                    .leave_special = tokenizer->split_special_tokens};
    /* Most have no such tokens, and then it is all the same. */
    bool marked = encoder->num_input > 0 && reader.tokens->count > 0;
    if ((marked && take_input(encoder, section)) ||
        normalizer_apply(&tokenizer->normalizer, text + section->start,
                         section->end - section->start, encoder->normal,
                         marked ? &encoder->marks : NULL, &reader.text, &reader.length,
                         encoder->err))
        return -1;
    if (marked) {
        reader.input = encoder->marks.input.items;
        reader.num_input = encoder->marks.input.count;
    }
    struct section part;
    while (section_next(&reader, &part))
        if (part.id >= 0 ? token_list_push(encoder->ids, part.id, encoder->err)
                         : encode_plain(encoder, reader.text + part.start, part.end - part.start,
                                        section->start == 0 && part.start == 0))
            return -1;
    return 0;
}

static int push_all(struct token_list *ids, const struct token_list *more, struct error *err)
{
    for (size_t i = 0; i < more->count; i++)
        if (token_list_push(ids, more->ids[i], err))
            return -1;
    return 0;
}

static int encode_text(struct encoder *encoder, const char *text, size_t length, bool special)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (special && push_all(encoder->ids, &tokenizer->prefix, encoder->err))
        return -1;
    struct section_reader reader = {.tokens = &tokenizer->plain_tokens,
                                    .text = text,
                                    .length = length,
                                    .leave_special = tokenizer->split_special_tokens,
                                    .input = encoder->input,
                                    .num_input = encoder->num_input};
    struct section section;
    while (section_next(&reader, &section))
        if (section.id >= 0 ? token_list_push(encoder->ids, section.id, encoder->err)
                            : encode_section(encoder, text, &section))
            return -1;
    return special ? push_all(encoder->ids, &tokenizer->suffix, encoder->err) : 0;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                     bool add_special_tokens, struct token_list *ids, struct error *err)
{
    return tokenizer_encode_input(tokenizer, text, length, NULL, 0, add_special_tokens, ids, err);
}

int tokenizer_encode_input(const struct tokenizer *tokenizer, const char *text, size_t length,
                           const struct text_span *input, size_t num_input, bool add_special_tokens,
                           struct token_list *ids, struct error *err)
{
    size_t valid = length <= MAX_TEXT_BYTES ? utf8_valid_length(text, length) : 0;
    if (length > MAX_TEXT_BYTES)
        return error_set(err, ERROR_INVALID, "text: expected at most %d bytes, got %zu",
                         MAX_TEXT_BYTES, length);
    if (valid < length)
        return error_set(err, ERROR_INVALID, "text: expected UTF-8, got byte 0x%02X at offset %zu",
                         (unsigned char)text[valid], valid);
    struct encoder encoder = {.tokenizer = tokenizer,
                              .scratch = {.no_special = num_input > 0},
                              .no_special = num_input > 0,
                              .input = input,
                              .num_input = num_input,
                              .ids = ids,
                              .err = err};
    size_t before = ids->count;
    int failed = encode_text(&encoder, text, length, add_special_tokens);
    for (size_t i = before; !failed && tokenizer->limit && i < ids->count; i++)
        if (ids->ids[i] >= tokenizer->limit)
            failed = error_set(err, ERROR_INVALID,
                               "text: token \"%.60s\" has id %d, and the model has %d ids",
                               vocabulary_content(&tokenizer->vocabulary, ids->ids[i]), ids->ids[i],
                               tokenizer->limit);
    if (failed)
        ids->count = before;
    pieces_clear(&encoder.pieces);
    bpe_scratch_clear(&encoder.scratch);
    unigram_scratch_clear(&encoder.unigram);
    text_buffer_clear(&encoder.normal[0]);
    text_buffer_clear(&encoder.normal[1]);
    normalizer_marks_clear(&encoder.marks);
    return failed;
}

/* The longest special token that the text [length] begins with, or NULL. Most bytes begin none. */
static const struct added_token *special_of(const struct added_tokens *tokens, const char *text,
                                            size_t length)
{
    const size_t *first = tokens->first + (unsigned char)text[0];
    return first[0] < first[1] ? added_tokens_special(tokens, text, length) : NULL;
}

bool tokenizer_find_special(const struct tokenizer *tokenizer, const char *text, size_t length,
                            size_t from, struct text_span *bytes, int32_t *id)
{
    for (size_t at = from; at < length && !tokenizer->split_special_tokens; at++) {
        const struct added_token *found =
            special_of(&tokenizer->plain_tokens, text + at, length - at);
        const struct added_token *other =
            special_of(&tokenizer->normalized_tokens, text + at, length - at);
        if (!found || (other && other->length > found->length))
            found = other;
        if (!found)
            continue;
        *bytes = (struct text_span){at, at + found->length};
        *id = found->id;
        return true;
    }
    return false;
}

int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count,
                     bool skip_special_tokens, char **text, size_t *length, struct error *err)
{
    struct decode_run run = {.decoder = &tokenizer->decoder,
                             .skip_special_tokens = skip_special_tokens};
    int failed = 0;
    for (size_t i = 0; i < count && !failed; i++)
        failed = decode_run_push(&run, ids[i], err);
    if (!failed)
        failed = decode_run_finish(&run, err);
    *length = run.out.length;
    if (!failed)
        failed = text_buffer_append(&run.out, "", 1, err);
    if (!failed) {
        *text = run.out.data;
        run.out = (struct text_buffer){0};
    }
    decode_run_clear(&run);
    return failed;
}

int tokenizer_limit(struct tokenizer *tokenizer, int32_t vocab_size, struct error *err)
{
    if (tokenizer->vocabulary.size <= vocab_size)
        return 0;
    const struct token_list *const around[] = {&tokenizer->prefix, &tokenizer->suffix};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < around[k]->count; i++)
            if (around[k]->ids[i] >= vocab_size)
                return error_set(err, ERROR_INVALID,
                                 "tokenizer.json: post_processor: id %d: expected ids below the "
                                 "model's vocab_size, %d",
                                 around[k]->ids[i], vocab_size);
    tokenizer->limit = vocab_size;
    warnings_add(
        &tokenizer->warnings,
        "tokenizer.json: it has ids up to %d, the model's vocab_size is %d: texts with the "
        "tokens that the model lacks are refused",
        tokenizer->vocabulary.size - 1, vocab_size);
    return 0;
}

const struct warnings *tokenizer_warnings(const struct tokenizer *tokenizer)
{
    return &tokenizer->warnings;
}

int32_t tokenizer_size(const struct tokenizer *tokenizer)
{
    return tokenizer->vocabulary.size;
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id)
{
    return vocabulary_knows(&tokenizer->vocabulary, id) &&
           tokenizer->vocabulary.tokens[id].flags & TOKEN_SPECIAL;
}

const char *tokenizer_token_content(const struct tokenizer *tokenizer, int32_t id)
{
    return vocabulary_knows(&tokenizer->vocabulary, id)
               ? vocabulary_content(&tokenizer->vocabulary, id)
               : NULL;
}

const char *tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *length)
{
    *length = 0;
    if (!vocabulary_knows(&tokenizer->vocabulary, id))
        return "";
    const struct decoder_token *token = &tokenizer->decoder.by_id[id];
    *length = token->length;
    return token->length ? tokenizer->decoder.texts.data + token->offset : "";
}

bool tokenizer_joins_with_spaces(const struct tokenizer *tokenizer)
{
    return tokenizer->decoder.kind == DECODER_NONE;
}
