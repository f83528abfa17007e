/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/auth.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int add_file(struct names *keys, const char *path, struct error *err)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return error_set(err, ERROR_IO, "--api-key-file: %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t capacity = 0;
    int result = 0;
    while (result == 0 && getline(&line, &capacity, file) >= 0)
        if (*line != '#')
            result = names_add(keys, line, strlen(line), err);
    if (result == 0 && ferror(file))
        result =
            error_set(err, ERROR_IO, "--api-key-file: %s: cannot read: %s", path, strerror(errno));
    free(line);
    fclose(file);
    if (result == 0 && keys->count == 0)
        result = error_set(err, ERROR_INVALID, "--api-key-file: %s holds no key", path);
    return result;
}

int auth_read(struct names *keys, const char *const *lists, size_t count, const char *file,
              struct error *err)
{
    if (names_add_lists(keys, lists, count, err))
        return -1;
    /* An empty --api-key would let everybody in. */
    if (count && keys->count == 0)
        return error_set(err, ERROR_INVALID,
                         "--api-key (REGLA_API_KEY): expected a key, got an empty "
                         "text");
    return file ? add_file(keys, file, err) : 0;
}

void auth_init(struct auth *auth)
{
    *auth = (struct auth){0};
    pthread_rwlock_init(&auth->lock, NULL);
}

void auth_clear(struct auth *auth)
{
    names_clear(&auth->keys);
    free(auth->allowed);
    pthread_rwlock_destroy(&auth->lock);
}

static size_t index_of(const struct names *keys, const char *key)
{
    size_t i = 0;
    while (i < keys->count && strcmp(keys->items[i], key) != 0)
        i++;
    return i;
}

int auth_learn(struct auth *auth, const struct names *keys, struct error *err)
{
    int result = 0;
    pthread_rwlock_wrlock(&auth->lock);
    bool *allowed = realloc(auth->allowed, (auth->keys.count + keys->count + 1) * sizeof *allowed);
    if (allowed)
        auth->allowed = allowed;
    else
        result = error_set(err, ERROR_NO_MEMORY, "out of memory for API keys");
    for (size_t i = 0; i < keys->count && result == 0; i++) {
        if (index_of(&auth->keys, keys->items[i]) < auth->keys.count)
            continue;
        allowed[auth->keys.count] = false;
        result = names_add(&auth->keys, keys->items[i], strlen(keys->items[i]), err);
    }
    pthread_rwlock_unlock(&auth->lock);
    return result;
}

void auth_allow(struct auth *auth, const struct names *keys)
{
    pthread_rwlock_wrlock(&auth->lock);
    for (size_t i = 0; i < auth->keys.count; i++)
        auth->allowed[i] = index_of(keys, auth->keys.items[i]) < keys->count;
    pthread_rwlock_unlock(&auth->lock);
}

static int equal(const char *key, const char *given, size_t length)
{
    size_t key_length = strlen(key);
    unsigned difference = key_length != length;
    for (size_t i = 0; i < length; i++)
        difference |= (unsigned char)given[i] ^ (unsigned char)key[i % key_length];
    return difference == 0;
}

/* Returns the index of the key, or -1. */
static int find(const struct auth *auth, const char *given, size_t length)
{
    int found = -1;
    for (size_t i = 0; i < auth->keys.count; i++)
        if (equal(auth->keys.items[i], given, length) && auth->allowed[i])
            found = (int)i;
    return found;
}

int auth_check(struct auth *auth, const char *authorization, const char *api_key)
{
    pthread_rwlock_rdlock(&auth->lock);
    int found = auth->keys.count == 0 ? 0 : -1;
    bool bears = authorization && strncasecmp(authorization, "Bearer ", 7) == 0;
    const char *given = bears ? authorization + 7 : authorization ? NULL : api_key;
    if (given && found < 0) {
        while (*given == ' ')
            given++;
        size_t length = strlen(given);
        while (length > 0 && (given[length - 1] == ' ' || given[length - 1] == '\t'))
            length--;
        found = find(auth, given, length);
    }
    pthread_rwlock_unlock(&auth->lock);
    return found;
}
