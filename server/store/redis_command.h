/* SPDX-License-Identifier: Apache-2.0 */
/* A command to Redis, as it is put together. */
#ifndef SERVER_STORE_REDIS_COMMAND_H
#define SERVER_STORE_REDIS_COMMAND_H

#include <stddef.h>
#include <stdint.h>

enum { REDIS_MOST_WORDS = 24, REDIS_NUMBER_SIZE = 24 };

struct redis_script;

/* Borrows all but the numbers. */
struct redis_command {
    const char *words[REDIS_MOST_WORDS]; /* [count], each of so many bytes: */
    size_t sizes[REDIS_MOST_WORDS];
    char numbers[REDIS_MOST_WORDS][REDIS_NUMBER_SIZE];
    int count;
    const struct redis_script *script; /* that it runs by its SHA-1; NULL: none */
};

void redis_command_begin(struct redis_command *command, const char *name);
void redis_command_text(struct redis_command *command, const char *text);
void redis_command_bytes(struct redis_command *command, const void *bytes, size_t size);
void redis_command_number(struct redis_command *command, int64_t number);

/* The key that says where in a cluster the command belongs; NULL: it has none. */
const char *redis_command_key(const struct redis_command *command, size_t *size);

#endif
