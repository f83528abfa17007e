/* SPDX-License-Identifier: Apache-2.0 */
#include "server/memory.h"

#include "server/log.h"

#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>

#define KIB ((int64_t)1 << 10)
#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)

/* What libmicrohttpd touches of a connection's buffer, our own structs, and the kernel's. */
static const int64_t CONNECTION_BYTES = 40 * KIB;
enum { LEAST_CONNECTIONS = 32, MOST_CONNECTIONS = 4096, CONNECTIONS_PART = 24 };

/* How much each part gets of what states leave: so many of all parts' shares, between least and
 * most bytes. */
static const struct {
    const char *name;
    int share;
    int64_t least, most; /* most 0: any */
} PARTS[NUM_MEMORY_PARTS] = {
    [MEMORY_STATES] = {"states and KV (--state-memory)", 0, 0, 0},
    [MEMORY_HOST] = {"checkpoints in host memory (--host-state-memory)", 8, 0, GIB},
    [MEMORY_FILES] = {"states on their way to and from files", 6, 64 * KIB, GIB},
    [MEMORY_BODIES] = {"bodies, prompts and replies (--max-body-memory)", 8, 512 * KIB, 512 * MIB},
    [MEMORY_REPLIES] = {"kept replies (--idempotency-memory)", 2, 0, 64 * MIB},
    [MEMORY_TEXTS] = {"tokens of sessions and checkpoints", 4, 64 * KIB, 0},
    [MEMORY_DATABASE] = {"the database", 4, 512 * KIB, 5 * MIB},
};
enum { SPARE_SHARE = 8 };

static double mib(int64_t bytes)
{
    return (double)bytes / (double)MIB;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least_of(const struct memory_needs *needs, enum memory_part part)
{
    return part == MEMORY_STATES ? needs->short_text : PARTS[part].least;
}

/* The least that everything together takes. asked: with all that was asked for. */
static int64_t total(const struct memory_needs *needs, bool asked)
{
    int64_t bytes = needs->taken;
    for (enum memory_part part = 0; part < NUM_MEMORY_PARTS; part++) {
        int64_t given = needs->asked[part], least = least_of(needs, part);
        if (given == MEMORY_AUTO)
            bytes += least;
        else
            bytes += asked ? given : smaller(given, least);
    }
    return bytes;
}

static int refuse(const struct free_memory *memory, int64_t bytes, const char *what,
                  struct error *err)
{
    int64_t left = (int64_t)memory->bytes, limit = (int64_t)memory->limit, lack = bytes - left;
    /* Where more is left there are more connections, too. */
    int64_t enough = (limit + lack + lack / (CONNECTIONS_PART - 1)) / MIB + 2;
    return error_set(err, ERROR_NO_MEMORY,
                     "memory: %s take%s %.1f MiB, expected at most the %.1f MiB that are left of "
                     "%s (%.1f MiB); %lld MiB would do",
                     what, what[0] == '-' ? " with the rest" : "", mib(bytes), mib(left),
                     free_memory_name(memory->limiting), mib(limit), (long long)enough);
}

static int check(const struct memory_needs *needs, struct error *err)
{
    int64_t least = total(needs, false), asked = total(needs, true);
    if (least > (int64_t)needs->now.bytes)
        return refuse(&needs->now, least,
                      "the states of one short text, connections, stacks and buffers", err);
    if (asked > (int64_t)needs->sure.bytes)
        return refuse(&needs->sure, asked,
                      "--state-memory, --host-state-memory, --max-body-memory and "
                      "--idempotency-memory",
                      err);
    if (asked > (int64_t)needs->now.bytes)
        log_message(LOG_LEVEL_WARN,
                    "the memory that was asked for (%.1f MiB with the rest) is more than the "
                    "%.1f MiB that are available now",
                    mib(asked), mib((int64_t)needs->now.bytes));
    return 0;
}

/* What states get besides the least: half of all, as far as that goes; where memory is scarce,
 * enough for a text of usual length. */
static int64_t more_states(const struct memory_needs *needs, int64_t rest)
{
    int64_t usual = needs->usual_text - needs->short_text;
    int64_t half = (int64_t)needs->now.bytes / 2 - needs->short_text;
    return larger(smaller(larger(rest / 2, smaller(usual, rest / 4 * 3)), half), 0);
}

int memory_plan_make(struct memory_plan *plan, const struct memory_needs *needs, struct error *err)
{
    int shares = SPARE_SHARE;
    if (check(needs, err))
        return -1;
    *plan = (struct memory_plan){.taken = needs->taken};
    int64_t rest = (int64_t)needs->now.bytes - needs->taken;
    for (enum memory_part part = 0; part < NUM_MEMORY_PARTS; part++) {
        bool chosen = needs->asked[part] == MEMORY_AUTO;
        plan->bytes[part] = chosen ? least_of(needs, part) : needs->asked[part];
        shares += chosen ? PARTS[part].share : 0;
        rest -= plan->bytes[part];
    }
    rest = larger(rest, 0);
    if (needs->asked[MEMORY_STATES] == MEMORY_AUTO) {
        int64_t more = more_states(needs, rest);
        plan->bytes[MEMORY_STATES] += more;
        rest -= more;
    }
    for (enum memory_part part = 0; part < NUM_MEMORY_PARTS; part++) {
        int64_t most = PARTS[part].most > 0 ? PARTS[part].most : INT64_MAX;
        if (needs->asked[part] == MEMORY_AUTO && PARTS[part].share > 0)
            plan->bytes[part] =
                smaller(plan->bytes[part] + rest / shares * PARTS[part].share, most);
    }
    plan->spare = (int64_t)needs->now.bytes - needs->taken;
    for (enum memory_part part = 0; part < NUM_MEMORY_PARTS; part++)
        plan->spare -= plan->bytes[part];
    return 0;
}

void memory_plan_report(const struct memory_plan *plan, const struct memory_needs *needs)
{
    int64_t rest = plan->taken;
    char states[64] = "";
    for (enum memory_part part = 0; part < NUM_MEMORY_PARTS; part++)
        rest += part == MEMORY_STATES ? 0 : plan->bytes[part];
    if (plan->bytes[MEMORY_STATES] > 0)
        snprintf(states, sizeof states, "%.1f for states and KV, ",
                 mib(plan->bytes[MEMORY_STATES]));
    log_message(LOG_LEVEL_INFO,
                "memory     %.1f MiB are left of %s (%.1f MiB): %sat most %.1f for all else, %.1f "
                "stay free",
                mib((int64_t)needs->now.bytes), free_memory_name(needs->now.limiting),
                mib((int64_t)needs->now.limit), states, mib(rest), mib(larger(plan->spare, 0)));
    for (enum memory_part part = 0; part < NUM_MEMORY_PARTS; part++)
        if (plan->bytes[part] > 0)
            log_message(LOG_LEVEL_DEBUG, "memory     %8.1f MiB for %s", mib(plan->bytes[part]),
                        PARTS[part].name);
    log_message(LOG_LEVEL_DEBUG,
                "memory     %8.1f MiB for connections, stacks and the buffers of a step",
                mib(plan->taken));
    log_message(LOG_LEVEL_DEBUG,
                "memory     %8.1f MiB stay free, also for what malloc and the kernel keep",
                mib(larger(plan->spare, 0)));
}

int memory_check(int64_t bytes, const char *what, struct error *err)
{
    struct free_memory now, sure;
    free_memory_read(&now, &sure);
    return bytes > (int64_t)sure.bytes ? refuse(&sure, bytes, what, err) : 0;
}

int64_t memory_bodies(void)
{
    enum { BODIES_PART = 16 };
    struct free_memory now;
    free_memory_read(&now, NULL);
    return smaller((int64_t)now.bytes / BODIES_PART, PARTS[MEMORY_BODIES].most);
}

int64_t memory_connections(void)
{
    struct free_memory now;
    free_memory_read(&now, NULL);
    int64_t fit = (int64_t)now.bytes / CONNECTIONS_PART / CONNECTION_BYTES;
    return larger(smaller(fit, MOST_CONNECTIONS), LEAST_CONNECTIONS);
}

int64_t memory_connection_bytes(int64_t connections)
{
    return connections * CONNECTION_BYTES;
}

/* By itself glibc raises both limits with what is freed, up to 32 and 64 MiB, and keeps that much
 * in each thread's arena. An arena takes 64 MiB of address space. */
void memory_tune_malloc(void)
{
    struct rlimit limit;
    mallopt(M_MMAP_THRESHOLD, (int)MIB);
    mallopt(M_TRIM_THRESHOLD, (int)MIB);
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        mallopt(M_ARENA_MAX, 1);
}
