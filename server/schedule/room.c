/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/room.h"

#include "server/capacity.h"

/* In its turn a text goes on for so many tokens, for this part of its length, and for as many
 * tokens as it had to take once more. */
enum { TURN_TOKENS = 32, TURN_PART = 16 };
/* A text reserves as many tokens ahead as this part of the memory holds, and not fewer than that.
 */
enum { AHEAD_PART = 16, LEAST_AHEAD = 512 };

void room_init(struct room *room, struct service *service, struct batch *batch,
               struct tenants *tenants, int max_texts)
{
    const struct engine_info *info = engine_info(service->engine);
    int64_t ahead = INT64_MAX / 2;
    if (info->kv_bytes_per_token > 0)
        ahead = (int64_t)(info->state_memory_bytes / AHEAD_PART / info->kv_bytes_per_token);
    *room = (struct room){
        .service = service,
        .tree = service->tree,
        .batch = batch,
        .tenants = tenants,
        .max_texts = (size_t)max_texts,
        .share = capacity_share(service->engine),
        .ahead = ahead > LEAST_AHEAD ? ahead : LEAST_AHEAD,
    };
}

int64_t room_reach(const struct room *room, const struct sequence *sequence, int64_t length)
{
    int64_t most = sequence_most(sequence);
    return room->ahead < most - length ? length + room->ahead : most;
}

/* What the text may take without asking again. */
static size_t held_by(const struct room *room, const struct sequence *sequence)
{
    return sequence->state
               ? engine_state_bytes(room->service->engine, state_reserved(sequence->state))
               : 0;
}

/* Sets tenant->held. */
static size_t measure(struct room *room)
{
    size_t all = 0;
    for (struct tenant *tenant = room->tenants->first; tenant; tenant = tenant->next)
        tenant->held = 0;
    for (size_t i = 0; i < room->batch->num_running; i++) {
        const struct sequence *sequence = room->batch->running[i];
        size_t held = held_by(room, sequence);
        sequence->job->run.tenant->held += held;
        all += held;
    }
    return all;
}

/* Whether there is memory, or would be without checkpoints. After measure. */
static bool has_memory(const struct room *room, const struct tenant *tenant, size_t bytes,
                       size_t all)
{
    size_t others = all - tenant->held;
    size_t kept = others < room->share ? room->share - others : 0;
    return state_tree_has_room(room->tree, bytes + kept);
}

/* The same for a text that begins: while another tenant waits for its part, others begin texts only
 * in the share. */
static bool may_begin(const struct room *room, const struct tenant *tenant, size_t bytes,
                      size_t all)
{
    if (room->claims && room->claims != tenant && all - room->claims->held + bytes > room->share)
        return false;
    return has_memory(room, tenant, bytes, all);
}

static struct tenant *tenant_of(const struct sequence *sequence)
{
    return sequence->job->run.tenant;
}

/* Whether the text could be set aside: it is none that ends in this turn. */
static bool is_movable(const struct sequence *sequence)
{
    return sequence->state && !sequence->job->failed && sequence->choice->finish == FINISH_NONE;
}

/* Whether the text has gone on for `least` tokens since it got its place. */
static bool had_turn(const struct sequence *sequence, int64_t least)
{
    int64_t part = sequence->placed_at / TURN_PART;
    if (part < sequence->again)
        part = sequence->again;
    return sequence_length(sequence) - sequence->placed_at >= (part > least ? part : least);
}

/* Whether a text gives its place up to the tenant. */
static bool yields_place(const struct sequence *sequence, const struct tenant *tenant)
{
    const struct tenant *own = tenant_of(sequence);
    if (own == tenant || !is_movable(sequence))
        return false;
    if (own->places > tenant->places + 1)
        return true;
    return own->places > tenant->places && tenant->served < own->served &&
           had_turn(sequence, TURN_TOKENS);
}

/* Whether it gives up its memory, of which the tenant wants so much. */
static bool yields_memory(const struct sequence *sequence, const struct tenant *tenant,
                          size_t bytes)
{
    const struct tenant *own = tenant_of(sequence);
    if (own == tenant || !is_movable(sequence))
        return false;
    if (own->held > tenant->held + bytes && had_turn(sequence, 0))
        return true;
    return tenant->served < own->served && had_turn(sequence, TURN_TOKENS);
}

/* The index of the youngest text that gives its place up, of the tenant with the most of them; as
 * far as such are there. num_running: there is none. */
static size_t place_victim(const struct room *room, const struct tenant *tenant)
{
    const struct batch *batch = room->batch;
    size_t victim = batch->num_running;
    for (size_t i = 0; i < batch->num_running; i++)
        if (yields_place(batch->running[i], tenant) &&
            (victim == batch->num_running ||
             tenant_of(batch->running[i])->places >= tenant_of(batch->running[victim])->places))
            victim = i;
    return victim;
}

/* The same of memory, where all that yield make enough room together. After measure. */
static size_t memory_victim(const struct room *room, const struct tenant *tenant, size_t bytes)
{
    const struct batch *batch = room->batch;
    size_t victim = batch->num_running, sum = 0, wanted = bytes + room->share;
    for (size_t i = 0; i < batch->num_running; i++) {
        if (!yields_memory(batch->running[i], tenant, bytes))
            continue;
        sum += held_by(room, batch->running[i]);
        if (victim == batch->num_running ||
            tenant_of(batch->running[i])->held >= tenant_of(batch->running[victim])->held)
            victim = i;
    }
    bool enough = sum >= wanted || state_tree_has_room(room->tree, wanted - sum);
    return enough ? victim : batch->num_running;
}

/* The tenant waits for memory. It has a claim if another has more than it would have. */
static void claim(struct room *room, const struct tenant *tenant)
{
    for (const struct tenant *other = room->tenants->first; other && !room->claims;
         other = other->next)
        if (other->held > tenant->held && tenant->served <= other->served)
            room->claims = tenant;
}

bool room_make(struct room *room, struct tenant *tenant, size_t bytes)
{
    struct batch *batch = room->batch;
    while (batch->num_running > 0) {
        size_t all = measure(room);
        bool place = batch->num_running < room->max_texts;
        bool memory = bytes == 0 || may_begin(room, tenant, bytes, all);
        if (place && memory)
            return true;
        size_t victim = memory ? place_victim(room, tenant) : memory_victim(room, tenant, bytes);
        if (victim == batch->num_running) {
            if (!memory)
                claim(room, tenant);
            return false;
        }
        batch_set_aside(batch, victim);
    }
    return true; /* prompt_prepare has checked that it fits */
}

/* Whether the text has memory for a step and those that overlap it. */
static bool is_ready(const struct sequence *sequence)
{
    if (!sequence->state || sequence->job->failed)
        return true;
    int64_t most = sequence_most(sequence), reserved = state_reserved(sequence->state);
    return reserved == most || sequence_length(sequence) + BATCH_MOST_STEPS <= reserved;
}

static bool grow_to(struct room *room, struct sequence *sequence, int64_t tokens, struct error *err)
{
    size_t more = engine_state_bytes(room->service->engine, tokens) - held_by(room, sequence);
    size_t all = measure(room);
    error_clear(err);
    return has_memory(room, tenant_of(sequence), more, all) &&
           state_tree_grow(room->tree, sequence->state, tokens, err) == 0;
}

/* As far ahead as there is room, or a page. */
static bool grow(struct room *room, struct sequence *sequence, struct error *err)
{
    int64_t length = sequence_length(sequence), most = sequence_most(sequence);
    int64_t page = length + BATCH_MOST_STEPS + engine_info(room->service->engine)->kv_page_tokens;
    return grow_to(room, sequence, room_reach(room, sequence, length), err) ||
           grow_to(room, sequence, page < most ? page : most, err);
}

/* The index of the youngest text of a tenant that can be set aside, after its turn or at any time;
 * else `at`. */
static size_t youngest_of(const struct room *room, const struct tenant *tenant, bool any_time,
                          size_t at)
{
    for (size_t i = room->batch->num_running; i-- > 0;) {
        const struct sequence *sequence = room->batch->running[i];
        if (tenant_of(sequence) == tenant && is_movable(sequence) &&
            (any_time || had_turn(sequence, 0)))
            return i;
    }
    return at;
}

/* Which text makes room for the one at `at`: the youngest of the tenant that has the most memory,
 * if that is another's and has had its turn, else of its own. After measure. */
static size_t gives_way(const struct room *room, size_t at)
{
    const struct tenant *own = tenant_of(room->batch->running[at]), *most = own;
    for (const struct tenant *tenant = room->tenants->first; tenant; tenant = tenant->next)
        if (tenant->held > most->held)
            most = tenant;
    size_t victim = most == own ? at : youngest_of(room, most, false, at);
    return victim != at ? victim : youngest_of(room, own, true, at);
}

void room_grow(struct room *room)
{
    struct batch *batch = room->batch;
    for (size_t i = 0; i < batch->num_running;) {
        struct sequence *sequence = batch->running[i];
        struct error err = ERROR_INIT;
        if (is_ready(sequence) || grow(room, sequence, &err)) {
            i++;
            continue;
        }
        size_t victim = gives_way(room, i);
        if (batch->num_running == 1 || !is_movable(batch->running[victim])) {
            if (err.code == ERROR_NONE)
                error_set(&err, ERROR_NO_MEMORY, "no memory for a text that runs alone");
            job_fail_engine(sequence->job, &err);
            i++;
            continue;
        }
        batch_set_aside(batch, victim);
        i -= victim < i;
    }
}
