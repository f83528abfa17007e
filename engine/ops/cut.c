/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/cut.h"

#include "engine/ops/logits.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* A set of the best: those above `logit`, and of those equal to it the first `ties`. */
struct cut {
    float logit;
    int32_t ties;
};

/* An integer in the order of the floats, which may be infinite; -0 is 0. */
static uint32_t order_key(float logit)
{
    float value = logit + 0.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static float logit_of_key(uint32_t key)
{
    uint32_t bits = key & 0x80000000u ? key & 0x7FFFFFFFu : ~key;
    float logit;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

/* A logit in (low, high] that halves what is between them: mostly the values, which suits logits,
 * and now and then the floats, which ends soon whatever they are. */
static float between(float low, float high, int step)
{
    float middle = low / 2 + high / 2;
    if (step % 4 == 3)
        middle = logit_of_key(order_key(low) + (order_key(high) - order_key(low) + 1) / 2);
    return middle > low && middle <= high ? middle : high;
}

enum { FEW = 4096 };

/* The at most FEW in [low, high] into few_logits and few_weights [FEW + 1]; returns how many. */
static int32_t gather(const float *logits, const float *weights, int32_t count, float low,
                      float high, float *few_logits, float *few_weights)
{
    int32_t found = 0;
    for (int32_t i = 0; i < count; i++) {
        few_logits[found] = logits[i];
        few_weights[found] = weights == NULL ? 1.0f : weights[i];
        found += (logits[i] >= low) & (logits[i] <= high); /* no branch: badly foreseen */
    }
    return found;
}

/* The smallest set of the best that reaches `wanted`: of weights, or candidates when NULL. The
 * last one's logit stays in [low, high], logits both, and what is above high is in the set. */
static struct cut best_reaching(const float *logits, const float *weights, int32_t count,
                                double wanted)
{
    float few_logits[FEW + 1], few_weights[FEW + 1];
    struct logits_split all = logits_split(logits, weights, count, -INFINITY);
    float low = all.least_above, high = logits_max(logits, count);
    int32_t inside = count, num_above = 0;
    double above = 0;
    /* of the candidates now looked at: what those before them weigh */
    double base = 0;
    int32_t num_base = 0;
    bool stuck = false; /* flushed denormals compare as equal */
    for (int step = 0; low < high; step++) {
        if (inside <= FEW && count > FEW) {
            count = gather(logits, weights, count, low, high, few_logits, few_weights);
            logits = few_logits;
            weights = few_weights;
            base = above;
            num_base = num_above;
        }
        float at = stuck ? high : between(low, high, step);
        struct logits_split split = logits_split(logits, weights, count, at);
        float old_low = low, old_high = high;
        if (base + split.above >= wanted) {
            inside = num_base + split.num_above - num_above;
            low = split.least_above;
        } else {
            inside -= num_base + split.num_above - num_above;
            num_above = num_base + split.num_above;
            above = base + split.above;
            high = split.most_below;
        }
        stuck = low == old_low && high == old_high;
    }
    double each = 1;
    for (int32_t i = 0; i < count && weights != NULL; i++)
        if (logits[i] == high) {
            each = (double)weights[i];
            break;
        }
    double ties = each > 0 ? ceil((wanted - above) / each) : (double)INT32_MAX;
    int32_t most = ties < 1 ? 1 : ties < (double)INT32_MAX ? (int32_t)ties : INT32_MAX;
    return (struct cut){high, most};
}

/* logits: [count], the candidates' own or others in their place. */
static void keep(struct candidates *c, const float *logits, struct cut cut)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < c->count; i++) {
        float logit = logits[i];
        c->logits[kept] = c->logits[i];
        c->weights[kept] = c->weights[i];
        c->ids[kept] = c->ids[i];
        kept += logit > cut.logit; /* no branch */
        if (logit == cut.logit)
            kept += cut.ties-- > 0;
    }
    c->count = kept;
}

/* Where each of `count` blocks has a logit, so many logits are no smaller than the smallest of
 * these: what is below the count-th largest of the blocks' maxima is not among the best. */
void cut_to_count(struct candidates *candidates, int32_t count)
{
    int32_t blocks = (candidates->count + 15) / 16;
    if (count >= candidates->count)
        return;
    if (count < blocks) {
        logits_block_max(candidates->logits, candidates->count, candidates->weights);
        struct cut cut = best_reaching(candidates->weights, NULL, blocks, count);
        cut.ties = INT32_MAX;
        keep(candidates, candidates->logits, cut);
    }
    keep(candidates, candidates->logits,
         best_reaching(candidates->logits, NULL, candidates->count, count));
}

void cut_to_weight(struct candidates *candidates, double wanted)
{
    keep(candidates, candidates->logits,
         best_reaching(candidates->logits, candidates->weights, candidates->count, wanted));
}

void cut_by(struct candidates *candidates, const float *keys, double wanted)
{
    struct cut cut = best_reaching(keys, candidates->weights, candidates->count, wanted);
    cut.ties = INT32_MAX; /* which may weigh different amounts */
    keep(candidates, keys, cut);
}
