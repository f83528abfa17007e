/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/piece.h"

#include "lib/text/buffer.h"

#include <stdlib.h>
#include <string.h>

/* What a stream may be behind before its texts pause. */
enum { OUTBOX_FULL_BYTES = 256 * 1024 };

void piece_clear(struct piece *piece)
{
    strbuf_clear(&piece->text);
    free(piece->tokens);
    free(piece->tops);
    *piece = (struct piece){0};
}

static int grow(struct piece *piece)
{
    size_t capacity = piece->capacity ? 2 * piece->capacity : 16;
    struct reply_token *tokens = realloc(piece->tokens, capacity * sizeof *tokens);
    if (!tokens)
        return -1;
    piece->tokens = tokens;
    if (piece->num_top) {
        struct token_logprob *tops =
            realloc(piece->tops, capacity * (size_t)piece->num_top * sizeof *tops);
        if (!tops)
            return -1;
        piece->tops = tops;
    }
    piece->capacity = capacity;
    return 0;
}

struct reply_token *piece_add(struct piece *piece, struct token_logprob **top)
{
    if (piece->num_tokens == piece->capacity && grow(piece))
        return NULL;
    size_t at = piece->num_tokens++;
    *top = piece->num_top ? piece->tops + at * (size_t)piece->num_top : NULL;
    piece->tokens[at] = (struct reply_token){.num_top = piece->num_top};
    return &piece->tokens[at];
}

int piece_join(struct piece *piece, const struct piece *more)
{
    struct token_logprob *top;
    for (size_t i = 0; i < more->num_tokens; i++) {
        struct reply_token *token = piece_add(piece, &top);
        if (!token)
            return -1;
        *token = more->tokens[i];
        token->top = NULL;
        token->num_top = 0;
    }
    strbuf_append(&piece->text, more->text.data, more->text.length);
    return piece->text.failed ? -1 : 0;
}

void piece_marks_clear(struct piece_marks *marks)
{
    free(marks->items);
    *marks = (struct piece_marks){0};
}

int piece_marks_add(struct piece_marks *marks, const struct piece *piece)
{
    struct error full = ERROR_INIT;
    if (array_grow((void **)&marks->items, &marks->capacity, marks->count + 1, sizeof *marks->items,
                   &full))
        return -1;
    marks->items[marks->count++] = (struct piece_mark){piece->text.length, piece->num_tokens};
    return 0;
}

void piece_keep(struct piece *piece, size_t first, size_t count)
{
    size_t tops = (size_t)piece->num_top;
    if (count > 0 && first > 0) {
        memmove(piece->tokens, piece->tokens + first, count * sizeof *piece->tokens);
        if (tops > 0)
            memmove(piece->tops, piece->tops + first * tops, count * tops * sizeof *piece->tops);
    }
    piece->num_tokens = count;
}

size_t piece_bytes(const struct piece *piece)
{
    return piece->capacity * (sizeof *piece->tokens + (size_t)piece->num_top * sizeof *piece->tops);
}

void piece_seal(struct piece *piece)
{
    for (size_t i = 0; i < piece->num_tokens; i++)
        piece->tokens[i].top = piece->num_top ? piece->tops + i * (size_t)piece->num_top : NULL;
}

/* Records hold structs, so each begins at a multiple of their alignment. */
static size_t aligned(size_t size)
{
    size_t unit = _Alignof(max_align_t);
    return (size + unit - 1) / unit * unit;
}

static size_t tokens_bytes(const struct outbox_record *record)
{
    return record->num_tokens * sizeof(struct reply_token);
}

static size_t tops_bytes(const struct outbox_record *record)
{
    return record->num_tokens * (size_t)record->num_top * sizeof(struct token_logprob);
}

static void copy(unsigned char **at, const void *from, size_t size)
{
    if (size)
        memcpy(*at, from, size);
    *at += size;
}

int outbox_put(struct outbox *outbox, struct outbox_record *record, const struct piece *piece)
{
    record->num_top = piece->num_top;
    record->num_tokens = piece->num_tokens;
    record->text_length = piece->text.length;
    record->size = aligned(sizeof *record) + aligned(tokens_bytes(record)) +
                   aligned(tops_bytes(record)) + aligned(record->text_length);
    if (outbox->length + record->size > outbox->capacity) {
        size_t capacity = outbox->capacity ? outbox->capacity : 4096;
        while (capacity < outbox->length + record->size)
            capacity *= 2;
        unsigned char *data = realloc(outbox->data, capacity);
        if (!data)
            return -1;
        outbox->data = data;
        outbox->capacity = capacity;
    }
    unsigned char *start = outbox->data + outbox->length;
    unsigned char *at = start;
    copy(&at, record, sizeof *record);
    at = start + aligned(sizeof *record);
    copy(&at, piece->tokens, tokens_bytes(record));
    at = start + aligned(sizeof *record) + aligned(tokens_bytes(record));
    copy(&at, piece->tops, tops_bytes(record));
    at = start + aligned(sizeof *record) + aligned(tokens_bytes(record)) +
         aligned(tops_bytes(record));
    copy(&at, piece->text.data, record->text_length);
    outbox->length += record->size;
    return 0;
}

bool outbox_full(const struct outbox *outbox)
{
    return outbox->length >= OUTBOX_FULL_BYTES;
}

void outbox_clear(struct outbox *outbox)
{
    free(outbox->data);
    *outbox = (struct outbox){0};
}

bool outbox_next(struct outbox *outbox, size_t *offset, struct outbox_record *record,
                 struct piece *piece)
{
    if (*offset == outbox->length)
        return false;
    unsigned char *at = outbox->data + *offset;
    memcpy(record, at, sizeof *record);
    *offset += record->size;
    at += aligned(sizeof *record);
    *piece = (struct piece){.num_tokens = record->num_tokens, .num_top = record->num_top};
    piece->tokens = (struct reply_token *)(void *)at;
    at += aligned(tokens_bytes(record));
    piece->tops = (struct token_logprob *)(void *)at;
    at += aligned(tops_bytes(record));
    piece->text.data = (char *)at;
    piece->text.length = record->text_length;
    piece_seal(piece);
    return true;
}
