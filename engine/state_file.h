/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes state files: tokens, a state, and its owner's notes in one container
 * (state-file.md has the format, byte by byte).
 *
 * Reading takes two steps. state_file_parse checks hostile bytes against themselves, without a
 * model, and gives views into them. state_file_check compares the views with an engine. Errors are
 * ERROR_INVALID and say place, expected and got: truncated, corrupt, of another model, of a newer
 * version. Any thread may call these functions. */
#ifndef ENGINE_STATE_FILE_H
#define ENGINE_STATE_FILE_H

#include "engine/engine.h"

enum {
    STATE_FILE_VERSION = 2, /* the newest; what has no part of its own is written as version 1 */
    STATE_FILE_MAX_META_BYTES = 64 << 10,
    STATE_FILE_MAX_HEAD_BYTES = 4 << 10 /* the head of a file is never longer */
};

/* The payload of a section. bytes NULL with size > 0: it is in the file, but not in the part given.
 */
struct state_file_section {
    bool present;
    const unsigned char *bytes; /* [size], at any alignment; borrowed from the file's bytes */
    size_t offset, size;
};

struct state_file {
    unsigned char fingerprint[16];
    int64_t position;   /* tokens that the state has taken; 0: no state */
    int64_t num_tokens; /* >= position; the loader replays those after it */
    int32_t vocab_size;
    uint64_t file_bytes;
    struct state_file_section meta; /* the owner's text, not checked here */
    struct state_file_section tokens, layout, state, logits;
};

int state_file_parse(struct state_file *out, const void *bytes, size_t size, struct error *err);
/* The same for the first `size` bytes of a file of `file_bytes`, at least the head. It checks the
 * sections in them. META, tokens and layout come before the state. */
int state_file_parse_part(struct state_file *out, const void *bytes, size_t size,
                          uint64_t file_bytes, struct error *err);
/* Checks that the file is of the engine's model: fingerprint, vocabulary, layout (except the KV
 * format), token ids, length. It checks the sections that were given. */
int state_file_check(const struct state_file *file, const struct engine *engine, struct error *err);

/* Copy parts out of a whole file that has been checked. */
void state_file_tokens(const struct state_file *file, int32_t *tokens); /* out: [num_tokens] */
/* image: [state_image_bytes(engine, position)], in the engine's KV format; position > 0. */
void state_file_image(const struct state_file *file, const struct engine *engine, void *image);
void state_file_logits(const struct state_file *file, float *logits); /* out: [vocab_size] */

/* The content of a file to write; everything is borrowed. */
struct state_file_source {
    int64_t position, num_tokens;
    const int32_t *tokens; /* [num_tokens] */
    const void *image;     /* [state_image_bytes(engine, position)]; NULL when position is 0 */
    const float *logits;   /* [vocab_size], those after the last token; NULL: none */
    const char *meta;      /* [meta_bytes] */
    size_t meta_bytes;     /* 0: none; at most STATE_FILE_MAX_META_BYTES */
};

/* The bytes of the file. Of the pointers in `source` only whether they are NULL counts. */
uint64_t state_file_bytes(const struct engine *engine, const struct state_file_source *source);
/* Passes the file to `write` piece by piece. Fails when `write` fails. */
int state_file_write(const struct engine *engine, const struct state_file_source *source,
                     int (*write)(void *context, const void *bytes, size_t size, struct error *err),
                     void *context, struct error *err);

#endif
