/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/plan.h"

struct budget {
    int tokens, logits;
    int chunk; /* most tokens of one prompt */
    int64_t pages;
};

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

/* Gives the row at most `tokens` more of the budget. */
static void give(struct plan_row *row, int tokens, struct budget *budget)
{
    int64_t want = row->prefill - row->tokens;
    int take = tokens < budget->tokens ? tokens : budget->tokens;
    if (take > want)
        take = (int)want;
    if (take > budget->chunk - row->tokens)
        take = budget->chunk - row->tokens;
    if (row->until && take > row->until - row->tokens)
        take = (int)(row->until - row->tokens);
    if (row->wants_all && take > budget->logits)
        take = budget->logits;
    bool ends = row->tokens + take == row->prefill && !row->wants_none;
    if (ends && !row->wants_all && budget->logits == 0)
        take--; /* its last token waits for a step with room for its logits */
    int64_t pages = row->tokens == 0 ? row->pages : 0;
    if (take <= 0 || pages > budget->pages)
        return;
    int before = row->logits;
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

static void plan_prefills(struct plan_row *rows, size_t count, struct plan_row *oldest,
                          struct budget *budget)
{
    give(oldest, (budget->tokens + 1) / 2, budget);
    while (budget->tokens > 0) {
        struct plan_row *row = least_left(rows, count, budget->pages);
        if (!row)
            break;
        give(row, budget->tokens, budget);
        if (row->tokens == 0)
            break;
    }
    give(oldest, budget->tokens, budget);
}

void plan_step(struct plan_row *rows, size_t count, const struct plan_limits *limits,
               struct plan_turn *turn)
{
    for (size_t i = 0; i < count; i++)
        rows[i].tokens = rows[i].logits = 0;
    struct plan_row *oldest = oldest_prefill(rows, count);
    struct budget kept = {0};
    if (oldest) {
        kept.tokens = limits->max_tokens / 4 > 1 ? limits->max_tokens / 4 : 1;
        kept.logits = limits->max_logits / 8 > 1 ? limits->max_logits / 8 : 1;
        kept.pages = turn->left_out ? 0 : oldest->pages;
    }
    struct budget budget = {limits->max_tokens - kept.tokens, limits->max_logits - kept.logits,
                            limits->max_chunk ? limits->max_chunk : limits->max_tokens,
                            limits->max_pages - kept.pages};
    if (count)
        plan_decodes(rows, count, &budget, turn);
    budget.tokens += kept.tokens;
    budget.logits += kept.logits;
    budget.pages += kept.pages;
    if (oldest)
        plan_prefills(rows, count, oldest, &budget);
}
