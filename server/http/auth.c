/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/auth.h"

#include "lib/base/blanks.h"
#include "lib/base/bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

enum { FILE_MOST_BYTES = 1 << 26 };

struct entry {
    unsigned char hash[SIPHASH_BYTES];
    int index; /* of the key; -1: nothing is here */
    bool allowed;
};

/* Never changed once requests look into it. */
struct auth_table {
    size_t count, capacity; /* a power of two, at most half full */
    struct entry entries[];
};

/* ---- reading ---- */

/* No header of a request can bear other keys. */
static int check_key(const char *key, size_t length, struct error *err)
{
    if (length > AUTH_KEY_BYTES)
        return error_set(err, ERROR_INVALID, "expected an API key of at most %d bytes, got %zu",
                         AUTH_KEY_BYTES, length);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)key[i];
        if (c < ' ' || c == 0x7f)
            return error_set(err, ERROR_INVALID,
                             "an API key has no line breaks or other control characters, got byte "
                             "0x%02x",
                             c);
    }
    return 0;
}

static int add_lists(struct names *keys, const char *const *lists, size_t count, struct error *err)
{
    static const char FLAG[] = "--api-key (REGLA_API_KEY)";
    if (names_add_lists(keys, lists, count, err))
        return -1;
    for (size_t i = 0; i < keys->count; i++)
        if (check_key(keys->items[i], strlen(keys->items[i]), err))
            return error_prefix(err, "%s: key %zu", FLAG, i + 1);
    /* An empty --api-key would let everybody in. */
    if (count && keys->count == 0)
        return error_set(err, ERROR_INVALID, "%s: expected a key, got an empty text", FLAG);
    return 0;
}

struct text {
    char *bytes; /* [capacity] */
    size_t size, capacity;
};

static void forget(struct text *text)
{
    if (text->bytes)
        explicit_bzero(text->bytes, text->capacity);
    free(text->bytes);
    *text = (struct text){0};
}

/* Not by stdio, which leaves what it has read in its buffers. */
static int read_all(int fd, struct text *text, struct error *err)
{
    for (;;) {
        if (text->size == text->capacity) {
            struct text larger = {.size = text->size, .capacity = 2 * text->capacity + 4096};
            if (larger.capacity > FILE_MOST_BYTES)
                return error_set(err, ERROR_INVALID, "expected at most %d bytes", FILE_MOST_BYTES);
            if (!(larger.bytes = malloc(larger.capacity)))
                return error_set(err, ERROR_NO_MEMORY, "out of memory for API keys");
            if (text->size)
                memcpy(larger.bytes, text->bytes, text->size);
            forget(text);
            *text = larger;
        }
        ssize_t got = read(fd, text->bytes + text->size, text->capacity - text->size);
        if (got < 0 && errno != EINTR)
            return error_set(err, ERROR_IO, "cannot read: %s", strerror(errno));
        if (got == 0)
            return 0;
        text->size += got > 0 ? (size_t)got : 0;
    }
}

static int add_lines(struct names *keys, const struct text *text, struct error *err)
{
    size_t line = 0;
    for (size_t at = 0; at < text->size; line++) {
        const char *key = text->bytes + at, *end = memchr(key, '\n', text->size - at);
        size_t length = end ? (size_t)(end - key) : text->size - at;
        at += length + 1;
        length = blanks_trim(&key, length);
        if (length == 0 || *key == '#')
            continue;
        if (check_key(key, length, err))
            return error_prefix(err, "line %zu", line + 1);
        if (names_add(keys, key, length, err))
            return -1;
    }
    return keys->count > 0 ? 0 : error_set(err, ERROR_INVALID, "expected a key, got none");
}

static int add_file(struct names *keys, const char *path, struct error *err)
{
    struct text text = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int result =
        fd < 0 ? error_set(err, ERROR_IO, "%s", strerror(errno)) : read_all(fd, &text, err);
    if (fd >= 0)
        close(fd);
    if (result == 0)
        result = add_lines(keys, &text, err);
    forget(&text);
    return result == 0 ? 0 : error_prefix(err, "--api-key-file: %s", path);
}

int auth_read(struct names *keys, const char *const *lists, size_t count, const char *file,
              struct error *err)
{
    if (add_lists(keys, lists, count, err))
        return -1;
    return file ? add_file(keys, file, err) : 0;
}

/* ---- the table ---- */

static bool is_equal(const unsigned char *a, const unsigned char *b)
{
    unsigned difference = 0;
    for (size_t i = 0; i < SIPHASH_BYTES; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}

/* Where a hash is, or would be. Who does not know the secret cannot choose where that is. */
static size_t place_of(const struct auth_table *table, const unsigned char *hash)
{
    size_t at = (size_t)read_u64(hash) & (table->capacity - 1);
    while (table->entries[at].index >= 0 && !is_equal(table->entries[at].hash, hash))
        at = (at + 1) & (table->capacity - 1);
    return at;
}

/* A copy with room for more; old NULL: it is empty. */
static struct auth_table *copy(const struct auth_table *old, size_t more, struct error *err)
{
    size_t count = old ? old->count : 0, capacity = 16;
    while (capacity < 2 * (count + more))
        capacity *= 2;
    struct auth_table *table = malloc(sizeof *table + capacity * sizeof *table->entries);
    if (!table) {
        error_set(err, ERROR_NO_MEMORY, "out of memory for API keys");
        return NULL;
    }
    table->count = count;
    table->capacity = capacity;
    for (size_t i = 0; i < capacity; i++)
        table->entries[i] = (struct entry){.index = -1};
    for (size_t i = 0; old && i < old->capacity; i++)
        if (old->entries[i].index >= 0)
            table->entries[place_of(table, old->entries[i].hash)] = old->entries[i];
    return table;
}

static void exchange(struct auth *auth, struct auth_table *table)
{
    pthread_rwlock_wrlock(&auth->lock);
    struct auth_table *old = auth->table;
    auth->table = table;
    pthread_rwlock_unlock(&auth->lock);
    free(old);
}

int auth_init(struct auth *auth, struct error *err)
{
    *auth = (struct auth){0};
    pthread_rwlock_init(&auth->lock, NULL);
    if (getrandom(auth->secret, sizeof auth->secret, 0) != sizeof auth->secret)
        return error_set(err, ERROR_IO, "no random numbers for API keys: %s", strerror(errno));
    return 0;
}

void auth_clear(struct auth *auth)
{
    free(auth->table);
    pthread_rwlock_destroy(&auth->lock);
    explicit_bzero(auth->secret, sizeof auth->secret);
}

size_t auth_count(struct auth *auth)
{
    pthread_rwlock_rdlock(&auth->lock);
    size_t count = auth->table ? auth->table->count : 0;
    pthread_rwlock_unlock(&auth->lock);
    return count;
}

int auth_learn(struct auth *auth, const struct names *keys, struct names *fresh, struct error *err)
{
    struct auth_table *table = keys->count ? copy(auth->table, keys->count, err) : NULL;
    size_t before = fresh->count;
    if (!table)
        return keys->count ? -1 : 0;
    for (size_t i = 0; i < keys->count; i++) {
        struct entry entry = {.index = (int)table->count};
        siphash(auth->secret, keys->items[i], strlen(keys->items[i]), entry.hash);
        size_t at = place_of(table, entry.hash);
        if (table->entries[at].index >= 0)
            continue;
        if (names_add(fresh, keys->items[i], strlen(keys->items[i]), err)) {
            names_wipe_from(fresh, before);
            free(table);
            return -1;
        }
        table->entries[at] = entry;
        table->count++;
    }
    exchange(auth, table);
    return 0;
}

int auth_allow(struct auth *auth, const struct names *keys, struct error *err)
{
    struct auth_table *table = auth->table ? copy(auth->table, 0, err) : NULL;
    if (!table)
        return auth->table ? -1 : 0;
    for (size_t i = 0; i < table->capacity; i++)
        table->entries[i].allowed = false;
    for (size_t i = 0; i < keys->count; i++) {
        unsigned char hash[SIPHASH_BYTES];
        siphash(auth->secret, keys->items[i], strlen(keys->items[i]), hash);
        table->entries[place_of(table, hash)].allowed = true;
    }
    exchange(auth, table);
    return 0;
}

int auth_check(struct auth *auth, const char *authorization, const char *api_key)
{
    bool bears = authorization && strncasecmp(authorization, "Bearer ", 7) == 0;
    const char *given = bears ? authorization + 7 : authorization ? NULL : api_key;
    size_t length = given ? blanks_trim(&given, strlen(given)) : 0;
    bool possible = length > 0 && length <= AUTH_KEY_BYTES;
    unsigned char hash[SIPHASH_BYTES];
    if (possible)
        siphash(auth->secret, given, length, hash);
    pthread_rwlock_rdlock(&auth->lock);
    int found = auth->table ? -1 : 0;
    if (auth->table && possible) {
        const struct entry *entry = &auth->table->entries[place_of(auth->table, hash)];
        found = entry->allowed ? entry->index : -1;
    }
    pthread_rwlock_unlock(&auth->lock);
    return found;
}
