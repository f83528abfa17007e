/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/auth.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int add_key(struct auth *auth, const char *text, size_t length, struct error *err)
{
    while (length && strchr(" \t\r\n", text[length - 1]))
        length--;
    while (length && strchr(" \t", *text)) {
        text++;
        length--;
    }
    if (length == 0)
        return 0;
    char **keys = realloc(auth->keys, (auth->count + 1) * sizeof *keys);
    if (!keys)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for API keys");
    auth->keys = keys;
    keys[auth->count] = strndup(text, length);
    if (!keys[auth->count])
        return error_set(err, ERROR_NO_MEMORY, "out of memory for API keys");
    auth->count++;
    return 0;
}

static int add_file(struct auth *auth, const char *path, struct error *err)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return error_set(err, ERROR_IO, "--api-key-file: %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t capacity = 0;
    int result = 0;
    while (result == 0 && getline(&line, &capacity, file) >= 0)
        if (*line != '#')
            result = add_key(auth, line, strlen(line), err);
    if (result == 0 && ferror(file))
        result =
            error_set(err, ERROR_IO, "--api-key-file: %s: cannot read: %s", path, strerror(errno));
    free(line);
    fclose(file);
    if (result == 0 && auth->count == 0)
        result = error_set(err, ERROR_INVALID, "--api-key-file: %s holds no key", path);
    return result;
}

int auth_init(struct auth *auth, const char *const *lists, size_t count, const char *file,
              struct error *err)
{
    *auth = (struct auth){0};
    for (size_t i = 0; i < count; i++)
        for (const char *at = lists[i]; at;) {
            const char *comma = strchr(at, ',');
            if (add_key(auth, at, comma ? (size_t)(comma - at) : strlen(at), err))
                return -1;
            at = comma ? comma + 1 : NULL;
        }
    /* An empty --api-key would let everybody in. */
    if (count && auth->count == 0)
        return error_set(err, ERROR_INVALID,
                         "--api-key (REGLA_API_KEY): expected a key, got an empty "
                         "text");
    return file ? add_file(auth, file, err) : 0;
}

void auth_clear(struct auth *auth)
{
    for (size_t i = 0; i < auth->count; i++)
        free(auth->keys[i]);
    free(auth->keys);
    *auth = (struct auth){0};
}

static int equal(const char *key, const char *given, size_t length)
{
    size_t key_length = strlen(key);
    unsigned difference = key_length != length;
    for (size_t i = 0; i < length; i++)
        difference |= (unsigned char)given[i] ^ (unsigned char)key[i % key_length];
    return difference == 0;
}

int auth_check(const struct auth *auth, const char *authorization)
{
    if (auth->count == 0)
        return 0;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return -1;
    const char *given = authorization + 7;
    while (*given == ' ')
        given++;
    size_t length = strlen(given);
    while (length > 0 && (given[length - 1] == ' ' || given[length - 1] == '\t'))
        length--;
    int found = -1;
    for (size_t i = 0; i < auth->count; i++)
        if (equal(auth->keys[i], given, length))
            found = (int)i;
    return found;
}

int auth_first(const struct auth *auth, int key)
{
    for (int i = 0; i < key; i++)
        if (strcmp(auth->keys[i], auth->keys[key]) == 0)
            return i;
    return key;
}
