/* SPDX-License-Identifier: Apache-2.0 */
/* What is new of a choice: text and the tokens it came from; and the bounded outbox in which the
 * engine thread leaves such pieces for the HTTP thread. */
#ifndef SERVER_SCHEDULE_PIECE_H
#define SERVER_SCHEDULE_PIECE_H

#include "api/completion_reply.h"

/* Zero-initialise, set num_top; grows, and keeps its memory when it is emptied. */
struct piece {
    struct strbuf text;
    struct reply_token *tokens; /* [num_tokens]; `top` is set by piece_seal */
    struct token_logprob *tops; /* [num_tokens, num_top] */
    size_t num_tokens, capacity;
    int num_top;
};

void piece_clear(struct piece *piece);

/* Room for one token more; returns its entry, and in *top its [num_top] entries. NULL: no memory.
 */
struct reply_token *piece_add(struct piece *piece, struct token_logprob **top);

/* Only its tokens from `first` on, so many, are left. */
void piece_keep(struct piece *piece, size_t first, size_t count);

/* What its tokens take. */
size_t piece_bytes(const struct piece *piece);

/* Points each token's `top` into tops: nothing may be added afterwards. */
void piece_seal(struct piece *piece);

/* A piece in the outbox, followed there by its tokens, tops and text. */
struct outbox_record {
    size_t size; /* of all of it */
    int choice;
    bool prompt; /* the choice's prompt is ready: its echo goes before the text */
    enum finish_reason finish;
    int32_t stop_index; /* which stop string, or -1 */
    int32_t stop_token; /* or -1 */
    int num_top;
    size_t num_tokens, text_length;
    int64_t generated; /* of all choices of the request, with this */
};

/* Guarded by the owner's lock. Zero-initialise. */
struct outbox {
    unsigned char *data; /* [length], records one after another */
    size_t length, capacity;
};

/* Appends a copy of the record and the piece; -1: no memory. */
int outbox_put(struct outbox *outbox, struct outbox_record *record, const struct piece *piece);

/* Whether the reader is so far behind that nothing more should be made for it now. What is made in
 * the step that fills it still goes in. */
bool outbox_full(const struct outbox *outbox);
void outbox_clear(struct outbox *outbox);

/* Reads the record at *offset into *record and *piece, which then points into the outbox (do not
 * clear it) and is sealed, and moves *offset on. False at the end. */
bool outbox_next(struct outbox *outbox, size_t *offset, struct outbox_record *record,
                 struct piece *piece);

#endif
