/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_command.h"

#include <stdio.h>
#include <string.h>

void redis_command_bytes(struct redis_command *command, const void *bytes, size_t size)
{
    if (command->count == REDIS_MOST_WORDS)
        return; /* each command has a fixed number of words: the tests would see it */
    command->words[command->count] = bytes != NULL ? bytes : "";
    command->sizes[command->count++] = size;
}

void redis_command_text(struct redis_command *command, const char *text)
{
    redis_command_bytes(command, text, strlen(text));
}

void redis_command_number(struct redis_command *command, int64_t number)
{
    if (command->count == REDIS_MOST_WORDS)
        return;
    char *text = command->numbers[command->count];
    snprintf(text, REDIS_NUMBER_SIZE, "%lld", (long long)number);
    redis_command_text(command, text);
}

void redis_command_begin(struct redis_command *command, const char *name)
{
    command->count = 0;
    command->script = NULL;
    redis_command_text(command, name);
}

const char *redis_command_key(const struct redis_command *command, size_t *size)
{
    static const char *const WITHOUT[] = {"INFO", "CONFIG", "PING", "AUTH", "SELECT", "CLUSTER"};
    enum { EVAL_KEY = 3 };
    int at = strncmp(command->words[0], "EVAL", 4) == 0 ? EVAL_KEY : 1;
    for (size_t i = 0; i < sizeof WITHOUT / sizeof *WITHOUT; i++)
        if (strcmp(command->words[0], WITHOUT[i]) == 0)
            return NULL;
    if (at >= command->count)
        return NULL;
    *size = command->sizes[at];
    return command->words[at];
}
