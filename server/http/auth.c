/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/auth.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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
            result = names_add(&auth->keys, line, strlen(line), err);
    if (result == 0 && ferror(file))
        result =
            error_set(err, ERROR_IO, "--api-key-file: %s: cannot read: %s", path, strerror(errno));
    free(line);
    fclose(file);
    if (result == 0 && auth->keys.count == 0)
        result = error_set(err, ERROR_INVALID, "--api-key-file: %s holds no key", path);
    return result;
}

int auth_init(struct auth *auth, const char *const *lists, size_t count, const char *file,
              struct error *err)
{
    *auth = (struct auth){0};
    if (names_add_lists(&auth->keys, lists, count, err))
        return -1;
    /* An empty --api-key would let everybody in. */
    if (count && auth->keys.count == 0)
        return error_set(err, ERROR_INVALID,
                         "--api-key (REGLA_API_KEY): expected a key, got an empty "
                         "text");
    return file ? add_file(auth, file, err) : 0;
}

void auth_clear(struct auth *auth)
{
    names_clear(&auth->keys);
}

static int equal(const char *key, const char *given, size_t length)
{
    size_t key_length = strlen(key);
    unsigned difference = key_length != length;
    for (size_t i = 0; i < length; i++)
        difference |= (unsigned char)given[i] ^ (unsigned char)key[i % key_length];
    return difference == 0;
}

int auth_check(const struct auth *auth, const char *authorization, const char *api_key)
{
    if (auth->keys.count == 0)
        return 0;
    bool bears = authorization && strncasecmp(authorization, "Bearer ", 7) == 0;
    const char *given = bears ? authorization + 7 : authorization ? NULL : api_key;
    if (!given)
        return -1;
    while (*given == ' ')
        given++;
    size_t length = strlen(given);
    while (length > 0 && (given[length - 1] == ' ' || given[length - 1] == '\t'))
        length--;
    int found = -1;
    for (size_t i = 0; i < auth->keys.count; i++)
        if (equal(auth->keys.items[i], given, length))
            found = (int)i;
    return found;
}

int auth_first(const struct auth *auth, int key)
{
    for (int i = 0; i < key; i++)
        if (strcmp(auth->keys.items[i], auth->keys.items[key]) == 0)
            return i;
    return key;
}
