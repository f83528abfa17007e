/* SPDX-License-Identifier: Apache-2.0 */
/* A piece is what is new of a choice: text, and the tokens it came from. The outbox is the bounded
 * buffer in which the engine thread leaves pieces for the HTTP thread. */
#ifndef SERVER_SCHEDULE_PIECE_H
#define SERVER_SCHEDULE_PIECE_H

#include "api/completion_reply.h"

/* Zero-initialise it and set num_top. It grows, and keeps its memory when it is emptied. */
struct piece {
    struct strbuf text;
    struct reply_token *tokens; /* [num_tokens]; `top` is set by piece_seal */
    struct token_logprob *tops; /* [num_tokens, num_top] */
    size_t num_tokens, capacity;
    int num_top;
};

void piece_clear(struct piece *piece);

/* Adds a token: returns its entry, and in *top its [num_top] alternatives. NULL: no memory. */
struct reply_token *piece_add(struct piece *piece, struct token_logprob **top);

/* Adds the text and the tokens of a piece, without their alternatives. -1: no memory. */
int piece_join(struct piece *piece, const struct piece *more);

/* Keeps `count` tokens from `first` on, and drops the others. */
void piece_keep(struct piece *piece, size_t first, size_t count);

/* Bytes that its tokens take. */
size_t piece_bytes(const struct piece *piece);

/* Points each token's `top` into tops. Nothing may be added afterwards. */
void piece_seal(struct piece *piece);

/* Where each of the pieces ends that another was joined of. Zero-initialise; piece_marks_clear
 * frees. */
struct piece_marks {
    struct piece_mark {
        size_t text, tokens;
    } * items; /* [count] */
    size_t count, capacity;
};
void piece_marks_clear(struct piece_marks *marks);
/* Another ends where the piece does. -1: no memory. */
int piece_marks_add(struct piece_marks *marks, const struct piece *piece);

/* A piece in the outbox, followed there by its tokens, tops and text. */
struct outbox_record {
    size_t size; /* bytes of the record and what follows it */
    int choice;
    bool prompt; /* the choice's prompt is ready: its echo goes before the text */
    enum finish_reason finish;
    int32_t stop_index; /* which stop string, or -1 */
    int32_t stop_token; /* or -1 */
    int num_top;
    size_t num_tokens, text_length;
    int64_t generated; /* tokens of all choices of the request, this piece included */
};

/* Guarded by the owner's lock. Zero-initialise. */
struct outbox {
    unsigned char *data; /* [length], records one after another */
    size_t length, capacity;
};

/* Appends a copy of the record and the piece; -1: no memory. */
int outbox_put(struct outbox *outbox, struct outbox_record *record, const struct piece *piece);

/* Whether the reader is so far behind that its texts should pause. Pieces of the step that fills
 * the outbox still go in. */
bool outbox_full(const struct outbox *outbox);
void outbox_clear(struct outbox *outbox);

/* Reads the record at *offset and moves *offset to the next one. *piece is sealed; it points into
 * the outbox, so do not clear it. False: there are no more records. */
bool outbox_next(struct outbox *outbox, size_t *offset, struct outbox_record *record,
                 struct piece *piece);

#endif
