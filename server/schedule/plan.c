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

static void plan_decodes(struct plan_row *rows, size_t count, struct budget *budget,
                         struct plan_turn *turn)
{
    size_t start = turn->row < count ? turn->row : 0;
    bool first = true, waits = false;
    *turn = (struct plan_turn){.row = start};
    for (size_t i = 0; i < count; i++) {
        size_t at = (start + i) % count;
        if (rows[at].prefill > 0 || rows[at].idle)
            continue;
        bool full = budget->tokens == 0 || budget->logits == 0;
        if (!full && budget->pages >= rows[at].pages) {
            rows[at].tokens = rows[at].logits = 1;
            budget->tokens--;
            budget->logits--;
            budget->pages -= rows[at].pages;
        } else if (!waits) {
            *turn = (struct plan_turn){.row = at, .left_out = first};
            waits = true;
        }
        if (full)
            return;
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

/* Of those whose pages fit. */
static struct plan_row *least_left(struct plan_row *rows, size_t count, int64_t pages)
{
    struct plan_row *best = NULL;
    for (size_t i = 0; i < count; i++)
        if (rows[i].prefill > 0 && !rows[i].idle && rows[i].tokens == 0 && rows[i].pages <= pages &&
            (!best || rows[i].prefill < best->prefill))
            best = &rows[i];
    return best;
}

/* NULL: no prompt goes on. */
static struct plan_row *oldest_prefill(struct plan_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (rows[i].prefill > 0 && !rows[i].idle)
            return &rows[i];
    return NULL;
}

/* slow: the slow one that takes part, or NULL. */
static void plan_prefills(struct plan_row *rows, size_t count, struct plan_row *slow,
                          struct plan_row *oldest, struct budget *budget)
{
    if (slow)
        give(slow, budget->tokens, 0, PLAN_LEAST_CHUNK, budget);
    if (oldest != slow)
        give(oldest, (budget->tokens + 1) / 2, budget->seconds / 2, PLAN_LEAST_CHUNK, budget);
    int least = PLAN_LEAST_CHUNK; /* the shortest goes on too */
    while (budget->tokens > 0) {
        struct plan_row *row = least_left(rows, count, budget->pages);
        if (!row)
            break;
        give(row, budget->tokens, budget->seconds, least, budget);
        if (row->tokens == 0)
            break;
        least = 0;
    }
    give(oldest, budget->tokens, budget->seconds, 0, budget);
}

/* Whether a text takes part that is not slow. */
static bool others_run(const struct plan_row *rows, size_t count, const struct plan_time *time)
{
    for (size_t i = 0; i < count; i++)
        if (!rows[i].idle && !is_slow(time, &rows[i]))
            return true;
    return false;
}

/* Of the slow prompts each takes part in its turn, and in the step after that none does, if another
 * text is to run. */
static struct plan_row *choose_slow(struct plan_row *rows, size_t count,
                                    const struct plan_time *time, const struct plan_turn *turn)
{
    struct plan_row *chosen = NULL;
    bool rest = turn->rests && others_run(rows, count, time);
    for (size_t i = 0; i < count && !chosen && !rest; i++) {
        struct plan_row *row = &rows[(turn->slow + i) % count];
        if (!row->idle && is_slow(time, row))
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
    for (size_t i = 0; i < count; i++)
        rows[i].tokens = rows[i].logits = 0;
    const size_t next_slow = turn->slow;
    struct plan_row *slow = choose_slow(rows, count, time, turn);
    struct plan_row *oldest = oldest_prefill(rows, count);
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
    if (count)
        plan_decodes(rows, count, &budget, turn);
    budget.tokens += kept.tokens;
    budget.logits += kept.logits;
    budget.pages += kept.pages;
    if (oldest)
        plan_prefills(rows, count, slow, oldest, &budget);
    turn->rests = slow && slow->tokens > 0;
    turn->slow = turn->rests ? (size_t)(slow - rows) + 1 : next_slow;
}
