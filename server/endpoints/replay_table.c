/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/replay_table.h"

#include "lib/base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

int replay_table_init(struct replay_table *table, int64_t max_bytes, struct error *err)
{
    table->max_bytes = max_bytes;
    if (getrandom(&table->seed, sizeof table->seed, 0) != (ssize_t)sizeof table->seed)
        return error_set(err, ERROR_INTERNAL, "the system has no random numbers");
    return 0;
}

static void entry_free(struct replay_entry *entry)
{
    if (entry->reply)
        replay_reply_release(entry->reply);
    free(entry);
}

void replay_table_clear(struct replay_table *table)
{
    for (size_t i = 0; i < REPLAY_TABLE_BUCKETS; i++)
        for (struct replay_entry *entry = table->buckets[i], *next; entry; entry = next) {
            next = entry->next;
            entry_free(entry);
        }
}

/* ---- by name ---- */

/* Clients choose keys: nobody can choose many that share a bucket. */
void replay_table_place(const struct replay_table *table, struct replay_entry *entry)
{
    entry->bucket =
        XXH3_64bits_withSeed(entry->name, entry->name_length, table->seed) % REPLAY_TABLE_BUCKETS;
}

struct replay_entry *replay_table_find(struct replay_table *table, const struct replay_entry *like)
{
    struct replay_entry *entry = table->buckets[like->bucket];
    while (entry && (entry->name_length != like->name_length ||
                     memcmp(entry->name, like->name, like->name_length) != 0))
        entry = entry->next;
    return entry;
}

void replay_table_add(struct replay_table *table, struct replay_entry *entry)
{
    entry->next = table->buckets[entry->bucket];
    table->buckets[entry->bucket] = entry;
}

/* ---- by last use ---- */

static int64_t bytes_of(const struct replay_entry *entry)
{
    return (int64_t)(sizeof *entry + entry->name_length + sizeof *entry->reply +
                     entry->reply->length);
}

static void unlink_used(struct replay_table *table, struct replay_entry *entry)
{
    *(entry->older ? &entry->older->newer : &table->oldest) = entry->newer;
    *(entry->newer ? &entry->newer->older : &table->newest) = entry->older;
    entry->older = entry->newer = NULL;
}

static void link_newest(struct replay_table *table, struct replay_entry *entry)
{
    entry->older = table->newest;
    *(table->newest ? &table->newest->newer : &table->oldest) = entry;
    table->newest = entry;
}

void replay_table_remove(struct replay_table *table, struct replay_entry *entry)
{
    struct replay_entry **link = &table->buckets[entry->bucket];
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
    if (entry->reply) {
        unlink_used(table, entry);
        table->bytes -= bytes_of(entry);
    }
    entry_free(entry);
}

void replay_table_expire(struct replay_table *table, double now)
{
    struct replay_entry *newer;
    for (struct replay_entry *entry = table->oldest; entry && entry->expires <= now;
         entry = newer) {
        newer = entry->newer;
        replay_table_remove(table, entry);
    }
}

/* One that can never fit takes nobody's place. */
struct replay_reply *replay_table_copy(const struct replay_table *table,
                                       const struct replay_entry *entry, struct replay_reply what,
                                       const char *data)
{
    bool fits = (int64_t)(sizeof *entry + entry->name_length + sizeof what + what.length) <=
                table->max_bytes;
    return fits ? replay_reply_copy(what, data) : NULL;
}

void replay_table_answer(struct replay_table *table, struct replay_entry *entry,
                         struct replay_reply *reply, double lifetime_s)
{
    entry->reply = reply;
    entry->expires = clock_seconds() + lifetime_s;
    link_newest(table, entry);
    table->bytes += bytes_of(entry);
}

struct replay_reply *replay_table_use(struct replay_table *table, struct replay_entry *entry)
{
    unlink_used(table, entry);
    link_newest(table, entry);
    replay_reply_hold(entry->reply);
    return entry->reply;
}

void replay_table_reopen(struct replay_table *table, struct replay_entry *entry)
{
    unlink_used(table, entry);
    table->bytes -= bytes_of(entry);
    replay_reply_release(entry->reply);
    entry->reply = NULL;
    entry->worked = true;
}
