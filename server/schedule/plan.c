/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/plan.h"

struct budget {
    int tokens, logits;
    int chunk; /* most tokens of one prompt */
    int64_t pages;
    const struct plan_time *time;
    double seconds; /* of prompts */
};

double plan_seconds(const struct plan_time *time, const struct plan_row *row, int64_t tokens)
{
    double n = (double)tokens;
    return n * (time->token + time->position * ((double)row->position + n / 2));
}

/* Whether the fewest tokens that a step takes of a prompt take longer than a step should. */
static bool is_slow(const struct plan_time *time, const struct plan_row *row)
{
    int64_t fewest = row->prefill < PLAN_LEAST_CHUNK ? row->prefill : PLAN_LEAST_CHUNK;
    return row->prefill > 0 && plan_seconds(time, row, fewest) > time->most;
}

/* Most of the row's next `take` tokens that take no longer than this, beside those that it has. */
static int tokens_within(const struct plan_time *time, const struct plan_row *row, int take,
                         double seconds)
{
    double has = plan_seconds(time, row, row->tokens);
    int low = 0;
    while (low < take) {
        int middle = low + (take - low + 1) / 2;
        if (plan_seconds(time, row, row->tokens + middle) - has <= seconds)
            low = middle;
        else
            take = middle - 1;
    }
    return low;
}

/* Whether the row goes before the other, when their tenants have had so much. */
static bool before(const struct plan_row *row, const struct plan_row *other)
{
    if (row->served != other->served)
        return row->served < other->served;
    return row->stepped < other->stepped;
}

/* Of the texts that decode and have not been asked yet. */
static struct plan_row *next_decode(struct plan_row *rows, size_t count)
{
    struct plan_row *best = NULL;
    for (size_t i = 0; i < count; i++)
        if (rows[i].prefill == 0 && !rows[i].idle && !rows[i].asked &&
            (!best || before(&rows[i], best)))
            best = &rows[i];
    return best;
}

static void serve(struct plan_row *rows, size_t count, uint64_t tenant, int64_t tokens)
{
    for (size_t i = 0; i < count; i++)
        if (rows[i].tenant == tenant)
            rows[i].served += tokens;
}

/* Whether there is room for all texts that decode; so it mostly is. */
static bool all_fit(const struct plan_row *rows, size_t count, const struct budget *budget)
{
    int64_t decodes = 0, pages = 0;
    for (size_t i = 0; i < count; i++)
        if (rows[i].prefill == 0 && !rows[i].idle) {
            decodes++;
            pages += rows[i].pages;
        }
    return decodes <= budget->tokens && decodes <= budget->logits && pages <= budget->pages;
}

static void take(struct plan_row *row, struct budget *budget, struct plan_turn *turn)
{
    row->stepped = ++turn->taken;
    row->tokens = row->logits = 1;
    budget->tokens--;
    budget->logits--;
    budget->pages -= row->pages;
}

static void plan_decodes(struct plan_row *rows, size_t count, struct budget *budget,
                         struct plan_turn *turn)
{
    struct plan_row *row;
    bool first = true;
    turn->left_out = false;
    if (all_fit(rows, count, budget)) {
        for (size_t i = 0; i < count; i++)
            if (rows[i].prefill == 0 && !rows[i].idle)
                take(&rows[i], budget, turn);
        return;
    }
    while (budget->tokens > 0 && budget->logits > 0 && (row = next_decode(rows, count))) {
        row->asked = true;
        if (budget->pages >= row->pages) {
            take(row, budget, turn);
            serve(rows, count, row->tenant, 1);
        } else if (first) {
            turn->left_out = true;
        }
        first = false;
    }
}

/* Gives the row at most `tokens` more of the budget, and so many seconds, but `least` tokens. */
static void give(struct plan_row *row, int tokens, double seconds, int least, struct budget *budget)
{
    int64_t want = row->prefill - row->tokens;
    int take = tokens < budget->tokens ? tokens : budget->tokens;
    if (take > want)
        take = (int)want;
    if (take > budget->chunk - row->tokens)
        take = budget->chunk - row->tokens;
    if (row->until && take > row->until - row->tokens)
        take = (int)(row->until - row->tokens);
    if (take > least) {
        int within = tokens_within(budget->time, row, take, seconds);
        take = within > least ? within : least;
    }
    if (row->wants_all && take > budget->logits)
        take = budget->logits;
    bool ends = row->tokens + take == row->prefill && !row->wants_none;
    if (ends && !row->wants_all && budget->logits == 0)
        take--; /* its last token waits for a step with room for its logits */
    int64_t pages = row->tokens == 0 ? row->pages : 0;
    if (take <= 0 || pages > budget->pages)
        return;
    int before = row->logits;
    budget->seconds -= plan_seconds(budget->time, row, row->tokens + take) -
                       plan_seconds(budget->time, row, row->tokens);
    row->tokens += take;
    if (row->wants_all)
        row->logits = row->tokens;
    else if (row->tokens == row->prefill && !row->wants_none)
        row->logits = 1;
    budget->tokens -= take;
    budget->logits -= row->logits - before;
    budget->pages -= pages;
}

/* Whether it is a prompt of the tenant that goes on; tenant NULL: of any. */
static bool goes_on(const struct plan_row *row, const uint64_t *tenant)
{
    return row->prefill > 0 && !row->idle && (!tenant || row->tenant == *tenant);
}

/* Of those whose pages fit. */
static struct plan_row *least_left(struct plan_row *rows, size_t count, const uint64_t *tenant,
                                   int64_t pages)
{
    struct plan_row *best = NULL;
    for (size_t i = 0; i < count; i++)
        if (goes_on(&rows[i], tenant) && rows[i].tokens == 0 && rows[i].pages <= pages &&
            (!best || rows[i].prefill < best->prefill))
            best = &rows[i];
    return best;
}

/* The oldest prompt of the next tenant, from the least served on, behind that of `last` (NULL: the
 * first). NULL: there is none. */
static struct plan_row *next_oldest(struct plan_row *rows, size_t count,
                                    const struct plan_row *last)
{
    struct plan_row *best = NULL;
    for (size_t i = 0; i < count; i++) {
        struct plan_row *row = &rows[i];
        bool later = !last || row->served > last->served ||
                     (row->served == last->served && row->tenant > last->tenant);
        bool sooner = !best || row->served < best->served ||
                      (row->served == best->served && row->tenant < best->tenant);
        if (goes_on(row, NULL) && later && sooner)
            best = row;
    }
    return best;
}

/* The prompts of the tenant whose oldest this is. least: tokens that the oldest and the shortest
 * get however long they take. */
static void plan_tenant(struct plan_row *rows, size_t count, struct plan_row *oldest, bool half,
                        int least, struct budget *budget)
{
    const uint64_t *tenant = &oldest->tenant;
    if (half)
        give(oldest, (budget->tokens + 1) / 2, budget->seconds / 2, least, budget);
    while (budget->tokens > 0) {
        struct plan_row *row = least_left(rows, count, tenant, budget->pages);
        if (!row)
            break;
        give(row, budget->tokens, budget->seconds, least, budget);
        if (row->tokens == 0)
            break;
        least = 0;
    }
    give(oldest, budget->tokens, budget->seconds, 0, budget);
}

/* slow: the slow one that takes part, or NULL. Of the budget each tenant gets its part, the least
 * served first; then they get what is left. */
static void plan_prefills(struct plan_row *rows, size_t count, struct plan_row *slow,
                          struct budget *budget)
{
    struct plan_row *oldest = NULL;
    int tenants = 0, least = PLAN_LEAST_CHUNK;
    if (slow)
        give(slow, budget->tokens, 0, PLAN_LEAST_CHUNK, budget);
    while ((oldest = next_oldest(rows, count, oldest)))
        tenants++;
    for (int left = tenants; left > 0; left--) {
        oldest = next_oldest(rows, count, oldest);
        struct budget part = *budget;
        part.tokens = (budget->tokens + left - 1) / left;
        part.seconds = budget->seconds / left;
        const struct budget all = part;
        plan_tenant(rows, count, oldest, oldest != slow, least, &part);
        budget->tokens -= all.tokens - part.tokens;
        if (part.seconds < all.seconds) /* without a limit both are infinite */
            budget->seconds -= all.seconds - part.seconds;
        budget->logits = part.logits;
        budget->pages = part.pages;
        least = 0;
    }
    oldest = NULL;
    while (tenants > 1 && (oldest = next_oldest(rows, count, oldest)))
        plan_tenant(rows, count, oldest, false, 0, budget);
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static void plan_drafts(struct plan_row *rows, size_t count, int most, struct budget *budget)
{
    most = least(most, least(budget->tokens, budget->logits));
    for (size_t i = 0; i < count && most > 0; i++) {
        const int drafts = rows[i].prefill == 0 && rows[i].tokens > 0 ? rows[i].drafts : 0;
        const int given = least(drafts, most);
        rows[i].tokens += given;
        rows[i].logits += given;
        most -= given;
    }
}

/* Whether a text takes part that is not slow. */
static bool others_run(const struct plan_row *rows, size_t count, const struct plan_time *time)
{
    for (size_t i = 0; i < count; i++)
        if (!rows[i].idle && !is_slow(time, &rows[i]))
            return true;
    return false;
}

/* Of the slow prompts of the least served tenant each takes part in its turn, and in the step after
 * that none does, if another text is to run. */
static struct plan_row *choose_slow(struct plan_row *rows, size_t count,
                                    const struct plan_time *time, const struct plan_turn *turn)
{
    struct plan_row *chosen = NULL;
    bool rest = turn->rests && others_run(rows, count, time);
    for (size_t i = 0; i < count && !rest; i++) {
        struct plan_row *row = &rows[(turn->slow + i) % count];
        if (!row->idle && is_slow(time, row) && (!chosen || row->served < chosen->served))
            chosen = row;
    }
    for (size_t i = 0; i < count; i++)
        if (&rows[i] != chosen && is_slow(time, &rows[i]))
            rows[i].idle = true;
    return chosen;
}

void plan_step(struct plan_row *rows, size_t count, const struct plan_limits *limits,
               const struct plan_time *time, struct plan_turn *turn)
{
    for (size_t i = 0; i < count; i++) {
        rows[i].tokens = rows[i].logits = 0;
        rows[i].asked = false;
    }
    struct plan_row *slow = choose_slow(rows, count, time, turn);
    struct plan_row *oldest = next_oldest(rows, count, NULL);
    struct budget kept = {0};
    if (oldest) {
        kept.tokens = limits->max_tokens / 4 > 1 ? limits->max_tokens / 4 : 1;
        kept.logits = limits->max_logits / 8 > 1 ? limits->max_logits / 8 : 1;
        kept.pages = turn->left_out ? 0 : oldest->pages;
    }
    struct budget budget = {limits->max_tokens - kept.tokens,
                            limits->max_logits - kept.logits,
                            limits->max_chunk ? limits->max_chunk : limits->max_tokens,
                            limits->max_pages - kept.pages,
                            time,
                            time->most};
    plan_decodes(rows, count, &budget, turn);
    budget.tokens += kept.tokens;
    budget.logits += kept.logits;
    budget.pages += kept.pages;
    if (oldest)
        plan_prefills(rows, count, slow, &budget);
    plan_drafts(rows, count, limits->max_drafts, &budget);
    turn->rests = slow && slow->tokens > 0;
    if (turn->rests)
        turn->slow = (size_t)(slow - rows) + 1;
}
