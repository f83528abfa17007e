/* SPDX-License-Identifier: Apache-2.0 */
#include "server/own_tokens.h"

#include "lib/base/siphash.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A place is looked for in one bucket, which its hash names. */
enum { BUCKETS = 4096, ENTRIES = 8 };

struct entry {
    uint64_t tag;    /* of the hash, the half that does not name the bucket; 0: the entry is free */
    uint32_t tenant; /* a hash of it: equal ones share */
    uint32_t used;   /* own_tokens.clock then */
};

struct own_tokens {
    const struct tokenizer *tokenizer;
    unsigned char secret[SIPHASH_BYTES];
    _Atomic bool any;     /* there are entries */
    pthread_mutex_t lock; /* of what follows */
    uint32_t clock;
    struct entry entries[BUCKETS][ENTRIES];
};

int own_tokens_create(struct own_tokens **out, const struct tokenizer *tokenizer, struct error *err)
{
    struct own_tokens *own = calloc(1, sizeof *own);
    if (!own)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the tokens of replies");
    if (getrandom(own->secret, sizeof own->secret, 0) != (ssize_t)sizeof own->secret) {
        free(own);
        return error_set(err, ERROR_IO, "the system gives no random numbers");
    }
    own->tokenizer = tokenizer;
    pthread_mutex_init(&own->lock, NULL);
    *out = own;
    return 0;
}

void own_tokens_free(struct own_tokens *own)
{
    if (!own)
        return;
    pthread_mutex_destroy(&own->lock);
    free(own);
}

/* ---- the table ---- */

struct hash {
    uint64_t half[2];
};

static struct entry *bucket_of(struct own_tokens *own, const struct hash *hash)
{
    return own->entries[hash->half[0] % BUCKETS];
}

static uint64_t tag_of(const struct hash *hash)
{
    return hash->half[1] ? hash->half[1] : 1;
}

static struct entry *entry_of(struct own_tokens *own, const struct hash *hash)
{
    struct entry *bucket = bucket_of(own, hash);
    for (size_t i = 0; i < ENTRIES; i++)
        if (bucket[i].tag == tag_of(hash))
            return &bucket[i];
    return NULL;
}

static int entries_of(const struct entry *bucket, uint32_t tenant)
{
    int count = 0;
    for (size_t i = 0; i < ENTRIES; i++)
        count += bucket[i].tenant == tenant;
    return count;
}

/* Who gives way in a full bucket: of the tenant that has the most there with the new one, the entry
 * that was used the longest ago. */
static struct entry *oldest_of_most(struct own_tokens *own, struct entry *bucket, uint32_t tenant)
{
    struct entry *found = NULL;
    int most = 0;
    for (struct entry *entry = bucket; entry < bucket + ENTRIES; entry++) {
        int count = entries_of(bucket, entry->tenant) + (entry->tenant == tenant);
        if (!found || count > most ||
            (count == most && own->clock - entry->used > own->clock - found->used))
            found = entry;
        most = count > most ? count : most;
    }
    return found;
}

static bool take(struct own_tokens *own, const struct hash *hash)
{
    pthread_mutex_lock(&own->lock);
    struct entry *entry = entry_of(own, hash);
    if (entry)
        entry->used = ++own->clock;
    pthread_mutex_unlock(&own->lock);
    return entry != NULL;
}

static void put(struct own_tokens *own, const struct hash *hash, uint32_t tenant)
{
    pthread_mutex_lock(&own->lock);
    struct entry *bucket = bucket_of(own, hash), *entry = entry_of(own, hash);
    for (size_t i = 0; i < ENTRIES && !entry; i++)
        entry = bucket[i].tag ? NULL : &bucket[i];
    if (!entry)
        entry = oldest_of_most(own, bucket, tenant);
    *entry = (struct entry){tag_of(hash), tenant, ++own->clock};
    pthread_mutex_unlock(&own->lock);
    atomic_store(&own->any, true);
}

/* ---- places ---- */

/* A pass over a text, from one special token that it spells to the next. */
struct walk {
    struct own_tokens *own;
    const struct own_text *text;
    struct hash place;   /* of all up to `done` */
    size_t done;         /* where the last token ended */
    size_t next_input;   /* the first that ends behind it */
    struct text_span at; /* the token at hand */
    int32_t id;
    struct hash its_place; /* if it is a token */
    struct hash passed;    /* if it is text */
};

static struct hash hash_of(const struct own_tokens *own, const void *bytes, size_t size)
{
    struct hash hash;
    siphash(own->secret, bytes, size, (unsigned char *)&hash);
    return hash;
}

/* That of a place, and of what follows it: bytes that have the hash `more`, and then a kind. */
static struct hash hash_behind(const struct own_tokens *own, struct hash place, struct hash more,
                               int64_t kind)
{
    const uint64_t all[] = {place.half[0], place.half[1], more.half[0], more.half[1],
                            (uint64_t)kind};
    return hash_of(own, all, sizeof all);
}

/* Kinds, beside the ids of tokens. */
enum { KIND_TEXT = -1, KIND_OWNER = -2, KIND_SALT = -3 };

static struct walk walk_begin(struct own_tokens *own, const struct own_text *text)
{
    struct walk walk = {.own = own, .text = text};
    walk.place = hash_behind(own, (struct hash){{0, 0}},
                             hash_of(own, text->owner, strlen(text->owner)), KIND_OWNER);
    if (text->salt)
        walk.place =
            hash_behind(own, walk.place, hash_of(own, text->salt, text->salt_length), KIND_SALT);
    return walk;
}

/* To the next token that the text spells. False: there is none. */
static bool walk_next(struct walk *walk)
{
    const struct own_text *text = walk->text;
    if (!tokenizer_find_special(walk->own->tokenizer, text->text, text->length, walk->done,
                                &walk->at, &walk->id))
        return false;
    struct hash bytes = hash_of(walk->own, text->text + walk->done, walk->at.end - walk->done);
    walk->its_place = hash_behind(walk->own, walk->place, bytes, walk->id);
    walk->passed = hash_behind(walk->own, walk->place, bytes, KIND_TEXT);
    return true;
}

static void walk_pass(struct walk *walk, bool token)
{
    walk->place = token ? walk->its_place : walk->passed;
    walk->done = walk->at.end;
}

/* Whether a byte of it is input, so that it is text. *next: the first span that may have one. */
static bool is_input(const struct span_list *input, size_t *next, struct text_span at)
{
    while (*next < input->count && input->items[*next].end <= at.start)
        ++*next;
    return *next < input->count && input->items[*next].start < at.end;
}

/* Whether there is one to ask for. */
static bool spells_input(const struct own_tokens *own, const struct own_text *text,
                         const struct span_list *input)
{
    struct text_span at = {0};
    size_t next = 0;
    int32_t id;
    while (tokenizer_find_special(own->tokenizer, text->text, text->length, at.end, &at, &id))
        if (is_input(input, &next, at))
            return true;
    return false;
}

/* Appends what of `input` is in [from, to). *next: the first span that may be. */
static int copy_input(struct span_list *out, const struct span_list *input, size_t *next,
                      size_t from, size_t to, struct error *err)
{
    for (; *next < input->count; ++*next) {
        struct text_span span = input->items[*next];
        if (span.start >= to)
            break;
        if (span.end > from && span_list_push(out, span.start > from ? span.start : from,
                                              span.end < to ? span.end : to, err))
            return -1;
        if (span.end > to)
            break;
    }
    return 0;
}

int own_tokens_find(struct own_tokens *own, const struct own_text *text, struct span_list *input,
                    struct error *err)
{
    struct span_list left = {0};
    size_t copied = 0, copy = 0, next = 0;
    int result = 0;
    if (!own || !atomic_load(&own->any) || !spells_input(own, text, input))
        return 0;
    struct walk walk = walk_begin(own, text);
    while (result == 0 && walk_next(&walk)) {
        bool written = !is_input(input, &next, walk.at);
        bool said = !written && take(own, &walk.its_place);
        if (said) {
            result = copy_input(&left, input, &copy, copied, walk.at.start, err);
            copied = walk.at.end;
        }
        walk_pass(&walk, written || said);
    }
    if (result == 0)
        result = copy_input(&left, input, &copy, copied, text->length, err);
    if (result == 0) {
        span_list_clear(input);
        *input = left;
    } else {
        span_list_clear(&left);
    }
    return result;
}

void own_tokens_add(struct own_tokens *own, const struct own_text *text, uint64_t tenant,
                    const struct span_list *input, size_t begin, const struct span_list *special)
{
    size_t next = 0, said = 0;
    if (!own)
        return;
    struct walk walk = walk_begin(own, text);
    uint32_t share = (uint32_t)hash_of(own, &tenant, sizeof tenant).half[0];
    while (said < special->count && walk_next(&walk)) {
        const struct text_span at = special->items[said];
        bool token = walk.at.end <= begin && !is_input(input, &next, walk.at);
        if (walk.at.start == begin + at.start && walk.at.end == begin + at.end) {
            put(own, &walk.its_place, share);
            token = true;
        }
        while (said < special->count && begin + special->items[said].start < walk.at.end)
            said++;
        walk_pass(&walk, token);
    }
}
