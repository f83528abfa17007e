/* SPDX-License-Identifier: Apache-2.0 */
/* The decoders of tokenizer.json: turn tokens back into text, one id at a time.
 *
 * decoder_prepare computes each token's text at load. A decode_run does what depends on
 * neighbouring tokens; both tokenizer_decode and the streaming detokenizer use one. */
#ifndef LIB_TEXT_DECODER_H
#define LIB_TEXT_DECODER_H

#include "lib/base/error.h"
#include "lib/text/buffer.h"
#include "lib/text/pattern.h"
#include "lib/text/vocabulary.h"

#include <stdbool.h>
#include <stdint.h>

enum decoder_kind {
    DECODER_NONE,       /* tokens, joined by spaces */
    DECODER_BYTE_LEVEL, /* tokens spell bytes in GPT-2's alphabet */
    DECODER_METASPACE,
    DECODER_STEPS, /* Replace, ByteFallback, Fuse, Strip */
};

struct decoder_replacement {
    struct pattern *pattern; /* owned */
    char *content;           /* owned, [length] bytes */
    size_t length;
};

/* A token that decodes to another spelling than its content. */
struct decoder_respelling {
    int32_t id;
    size_t offset, length; /* in `respelled` */
};

struct decoder_token {
    const char
        *spelling; /* what the decoder reads: the content, or that of a normalized added token */
    uint32_t spelling_length;
    uint32_t offset; /* where the text begins in `texts` */
    uint32_t length;
    int16_t byte; /* ByteFallback: the byte the token stands for, else -1 */
    bool skipped; /* by skip_special_tokens */
};

/* Zero-initialise; decoder_clear frees it. */
struct decoder {
    enum decoder_kind kind;
    struct decoder_replacement *replacements; /* [replacement_count], in order */
    size_t replacement_count;
    size_t replacement_capacity;
    bool byte_fallback;
    char strip[5];                          /* Strip: one character */
    size_t strip_count;                     /* how often it is removed from the start */
    char metaspace[5];                      /* the character that stands for a space */
    bool metaspace_prepends;                /* the first token loses its metaspaces */
    const struct vocabulary *tokens;        /* borrowed */
    struct decoder_respelling *respellings; /* [respelling_count] */
    size_t respelling_count;
    size_t respelling_capacity;
    struct text_buffer respelled;
    struct decoder_token *by_id; /* [tokens->size] */
    struct text_buffer texts;
};

/* Takes ownership of pattern and content, also on failure. */
int decoder_add_replacement(struct decoder *decoder, struct pattern *pattern, char *content,
                            size_t length, struct error *err);

/* Lets a token decode to a spelling ([length] bytes) that is not its content: as in the library, an
 * added token that is searched for in normalized text decodes to what is searched for. */
int decoder_respell(struct decoder *decoder, int32_t id, const char *spelling, size_t length,
                    struct error *err);

/* Computes the text of every token. Set kind and options first. Borrows `tokens`. */
int decoder_prepare(struct decoder *decoder, const struct vocabulary *tokens, struct error *err);
void decoder_clear(struct decoder *decoder);

/* One text that is being decoded. Set `decoder`, zero the rest; decode_run_clear frees it. */
struct decode_run {
    const struct decoder *decoder; /* borrowed */
    bool skip_special_tokens;
    const int32_t *kept; /* [num_kept], borrowed: but not these */
    size_t num_kept;
    bool started;               /* a token has been pushed */
    bool stripped;              /* Strip is done */
    size_t strip_done;          /* characters that Strip has removed */
    struct text_buffer pending; /* bytes that are not final yet */
    struct text_buffer out;     /* final text: the caller takes it and sets out.length to 0 */
    size_t whole, characters; /* of pending, with ByteFallback: bytes that are whole characters from
                                     its start, and how many those are */
    size_t lead_bytes, lead_characters; /* before the last token's own text: bytes of `out`, and
                                           characters of pending */
};

/* Begins after ids [count], whose text has been given out already. */
int decode_run_prime(struct decode_run *run, const int32_t *ids, size_t count, struct error *err);

/* Decodes one id. Unknown ids give nothing. */
int decode_run_push(struct decode_run *run, int32_t id, struct error *err);
/* Characters before the last token's own text, since `out` was empty. */
size_t decode_run_lead(const struct decode_run *run);
int decode_run_finish(struct decode_run *run, struct error *err);
void decode_run_clear(struct decode_run *run);

#endif
