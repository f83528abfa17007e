/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/sampler.h"

#include "engine/ops/cut.h"
#include "engine/ops/logits.h"
#include "lib/base/nearness.h"
#include "lib/base/philox.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct sampler {
    struct sampling settings; /* logit_bias and allowed are ours */
    int32_t vocab_size;
    int64_t num_generated;
    float *work;    /* [V] adjusted logits; NULL: greedy on untouched logits */
    float *weights; /* [V]; NULL: greedy */
    int32_t *ids;   /* [V] of what top_k, typical_p and top_p keep; NULL without them */
    float *near;    /* [V] scratch of typical_p; NULL without it */
    /* Tokens a penalty may touch; NULL without penalties. */
    int32_t *counts;  /* [V] how often generated */
    int32_t *seen;    /* [num_seen] distinct ids, at most V */
    uint8_t *is_seen; /* [V] */
    int32_t num_seen;
};

static bool has_penalties(const struct sampling *s)
{
    return s->presence_penalty != 0 || s->frequency_penalty != 0 || s->repetition_penalty != 1;
}

/* Flush-to-zero makes smaller ones zero in the engine's thread and not elsewhere. */
static bool is_greedy(const struct sampling *s)
{
    return s->temperature < FLT_MIN;
}

static bool has_cuts(const struct sampling *s, int32_t vocab_size)
{
    return (s->top_k > 0 && s->top_k < vocab_size) || s->top_p < 1 || is_typical(s->typical_p);
}

/* Which arrays of the vocabulary's size the settings need. */
static bool needs_work(const struct sampling *s)
{
    return !is_greedy(s) || has_penalties(s) || s->num_logit_bias > 0 || s->num_allowed > 0 ||
           s->masked;
}

static bool needs_ids(const struct sampling *s, int32_t vocab_size)
{
    return !is_greedy(s) && has_cuts(s, vocab_size);
}

static bool needs_near(const struct sampling *s)
{
    return !is_greedy(s) && is_typical(s->typical_p);
}

size_t sampler_bytes(const struct sampling *sampling, int32_t vocab_size)
{
    const struct sampler *sampler = NULL;
    size_t each = 0;
    if (needs_work(sampling))
        each += sizeof *sampler->work;
    if (!is_greedy(sampling))
        each += sizeof *sampler->weights;
    if (needs_ids(sampling, vocab_size))
        each += sizeof *sampler->ids;
    if (needs_near(sampling))
        each += sizeof *sampler->near;
    if (has_penalties(sampling))
        each += sizeof *sampler->counts + sizeof *sampler->seen + sizeof *sampler->is_seen;
    return sizeof *sampler + each * (size_t)vocab_size +
           sampling->num_logit_bias * sizeof *sampling->logit_bias +
           sampling->num_allowed * sizeof *sampling->allowed;
}

static void see(struct sampler *sampler, int32_t id)
{
    if (!sampler->is_seen[id]) {
        sampler->is_seen[id] = 1;
        sampler->seen[sampler->num_seen++] = id;
    }
}

static int allocate(struct sampler *sampler, struct error *err)
{
    const struct sampling *s = &sampler->settings;
    size_t vocab = (size_t)sampler->vocab_size;
    bool missing = false;
    if (needs_work(s))
        missing |= !(sampler->work = malloc(vocab * sizeof *sampler->work));
    if (!is_greedy(s))
        missing |= !(sampler->weights = malloc(vocab * sizeof *sampler->weights));
    if (needs_ids(s, sampler->vocab_size))
        missing |= !(sampler->ids = malloc(vocab * sizeof *sampler->ids));
    if (needs_near(s))
        missing |= !(sampler->near = malloc(vocab * sizeof *sampler->near));
    if (has_penalties(s)) {
        missing |= !(sampler->counts = calloc(vocab, sizeof *sampler->counts));
        missing |= !(sampler->seen = malloc(vocab * sizeof *sampler->seen));
        missing |= !(sampler->is_seen = calloc(vocab, sizeof *sampler->is_seen));
    }
    return missing ? error_set(err, ERROR_NO_MEMORY, "sampler: out of memory") : 0;
}

static int copy_bias(struct sampler *sampler, const struct sampling *sampling, struct error *err)
{
    size_t count = sampling->num_logit_bias;
    if (count == 0)
        return 0;
    if (count > (size_t)sampler->vocab_size)
        return error_set(err, ERROR_INVALID, "logit_bias: expected at most %d ids, got %zu",
                         (int)sampler->vocab_size, count);
    struct logit_bias *copy = calloc(count, sizeof *copy);
    if (!copy)
        return error_set(err, ERROR_NO_MEMORY, "sampler: out of memory");
    sampler->settings.logit_bias = copy;
    sampler->settings.num_logit_bias = count;
    for (size_t i = 0; i < count; i++) {
        copy[i] = sampling->logit_bias[i];
        if (copy[i].id < 0 || copy[i].id >= sampler->vocab_size)
            return error_set(err, ERROR_INVALID, "logit_bias: token id %d is not in [0, %d)",
                             (int)copy[i].id, (int)sampler->vocab_size);
    }
    return 0;
}

static int copy_allowed(struct sampler *sampler, const struct sampling *sampling, struct error *err)
{
    size_t count = sampling->num_allowed;
    if (count == 0)
        return 0;
    if (count > (size_t)sampler->vocab_size)
        return error_set(err, ERROR_INVALID, "allowed tokens: expected at most %d ids, got %zu",
                         (int)sampler->vocab_size, count);
    int32_t *copy = malloc(count * sizeof *copy);
    if (!copy)
        return error_set(err, ERROR_NO_MEMORY, "sampler: out of memory");
    sampler->settings.allowed = copy;
    sampler->settings.num_allowed = count;
    for (size_t i = 0; i < count; i++) {
        copy[i] = sampling->allowed[i];
        if (copy[i] < 0 || copy[i] >= sampler->vocab_size)
            return error_set(err, ERROR_INVALID, "allowed tokens: token id %d is not in [0, %d)",
                             (int)copy[i], (int)sampler->vocab_size);
    }
    return 0;
}

int sampler_create(struct sampler **out, const struct sampling *sampling, int32_t vocab_size,
                   const int32_t *prompt, size_t num_prompt, struct error *err)
{
    *out = NULL;
    if (vocab_size <= 0)
        return error_set(err, ERROR_INVALID, "sampler: a vocabulary of %d", (int)vocab_size);
    struct sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler)
        return error_set(err, ERROR_NO_MEMORY, "sampler: out of memory");
    sampler->vocab_size = vocab_size;
    sampler->settings = *sampling;
    sampler->settings.logit_bias = NULL;
    sampler->settings.num_logit_bias = 0;
    sampler->settings.allowed = NULL;
    sampler->settings.num_allowed = 0;
    sampler->settings.repetition_penalty = fmaxf(sampling->repetition_penalty, FLT_MIN);
    if (copy_bias(sampler, sampling, err) != 0 || copy_allowed(sampler, sampling, err) != 0 ||
        allocate(sampler, err) != 0) {
        sampler_free(sampler);
        return -1;
    }
    for (size_t i = 0; i < num_prompt && sampling->repetition_penalty != 1; i++) {
        if (prompt[i] < 0 || prompt[i] >= vocab_size) {
            sampler_free(sampler);
            return error_set(err, ERROR_INVALID, "prompt: token id %d is not in [0, %d)",
                             (int)prompt[i], (int)vocab_size);
        }
        see(sampler, prompt[i]);
    }
    *out = sampler;
    return 0;
}

void sampler_free(struct sampler *sampler)
{
    if (!sampler)
        return;
    free((void *)sampler->settings.logit_bias);
    free((void *)sampler->settings.allowed);
    free(sampler->work);
    free(sampler->weights);
    free(sampler->ids);
    free(sampler->near);
    free(sampler->counts);
    free(sampler->seen);
    free(sampler->is_seen);
    free(sampler);
}

/* The logits that the mask lets through. Most words of a mask are all or nothing. */
static void copy_masked(float *work, const float *logits, int32_t count, const uint32_t *mask)
{
    enum { BITS = 32 };
    for (int32_t first = 0; first < count; first += BITS) {
        uint32_t word = mask[first / BITS];
        int32_t end = count - first < BITS ? count : first + BITS;
        if (word == UINT32_MAX)
            memcpy(work + first, logits + first, (size_t)(end - first) * sizeof *work);
        else
            for (int32_t i = first; i < end; i++, word >>= 1)
                work[i] = word & 1 ? logits[i] : -INFINITY;
    }
}

static bool lets_through(const uint32_t *mask, int32_t id)
{
    return mask == NULL || (mask[id / 32] >> id % 32 & 1) != 0;
}

/* The logits of what may come. */
static void copy_logits(struct sampler *sampler, const float *logits, const uint32_t *mask)
{
    const struct sampling *s = &sampler->settings;
    float *work = sampler->work;
    if (s->num_allowed == 0 && mask != NULL) {
        copy_masked(work, logits, sampler->vocab_size, mask);
        return;
    }
    if (s->num_allowed == 0) {
        memcpy(work, logits, (size_t)sampler->vocab_size * sizeof *work);
        return;
    }
    for (int32_t i = 0; i < sampler->vocab_size; i++)
        work[i] = -INFINITY;
    for (size_t i = 0; i < s->num_allowed; i++)
        if (lets_through(mask, s->allowed[i]))
            work[s->allowed[i]] = logits[s->allowed[i]];
}

static const uint32_t *mask_of(const struct draw *draw)
{
    return draw->sampler->settings.masked ? draw->mask : NULL;
}

/* Logits, bias, penalties and bans into work. */
static void adjust(struct sampler *sampler, const float *logits, const struct draw *draw)
{
    const struct sampling *s = &sampler->settings;
    float *work = sampler->work;
    copy_logits(sampler, logits, mask_of(draw));
    for (size_t i = 0; i < s->num_logit_bias; i++)
        work[s->logit_bias[i].id] += s->logit_bias[i].bias;
    for (int32_t i = 0; i < sampler->num_seen; i++) {
        int32_t id = sampler->seen[i];
        float logit = work[id];
        logit = logit > 0 ? logit / s->repetition_penalty : logit * s->repetition_penalty;
        logit -= s->frequency_penalty * (float)sampler->counts[id];
        if (sampler->counts[id] > 0)
            logit -= s->presence_penalty;
        work[id] = logit;
    }
    for (size_t i = 0; i < draw->num_banned; i++)
        if (draw->banned[i] >= 0 && draw->banned[i] < sampler->vocab_size)
            work[draw->banned[i]] = -INFINITY;
}

static bool contains(const int32_t *ids, size_t count, int32_t id)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* The id of the largest logit that is not banned (ties: the smallest id); -1: none above -inf. */
static int32_t best(const float *logits, int32_t vocab_size, float max, const int32_t *banned,
                    size_t num_banned)
{
    for (int32_t i = 0; i < vocab_size && max > -INFINITY; i++)
        if (logits[i] == max && !contains(banned, num_banned, i))
            return i;
    int32_t id = -1; /* whatever is largest is banned */
    max = -INFINITY;
    for (int32_t i = 0; i < vocab_size; i++)
        if (logits[i] > max && !contains(banned, num_banned, i)) {
            max = logits[i];
            id = i;
        }
    return id;
}

/* The place where the sum of weights [count], in order, passes the target; never that of a zero. */
static int32_t place_at(const float *weights, int32_t count, double target)
{
    enum { BLOCK = 256 };
    double sum = 0;
    for (int32_t first = 0; first < count; first += BLOCK) {
        int32_t n = count - first < BLOCK ? count - first : BLOCK;
        double block = logits_sum(weights + first, n), within = sum;
        for (int32_t i = first; sum + block > target && i < first + n; i++) {
            within += (double)weights[i];
            if (within > target && weights[i] > 0)
                return i;
        }
        sum += block;
    }
    int32_t last = count - 1; /* rounding kept the sum from passing the target */
    while (weights[last] == 0)
        last--;
    return last;
}

/* Keeps what is typical, as long as it weighs enough: the tokens whose information content, -log p,
 * is nearest to what is expected of it (Meister et al., "Locally Typical Sampling"). That is those
 * whose logits are nearest to the expected logit. Returns the weight of those that are left. */
static double keep_typical(struct sampler *sampler, struct candidates *c, double total)
{
    double expected = logits_weighted(c->logits, c->weights, c->count) / total;
    double wanted = (double)sampler->settings.typical_p * total;
    for (int32_t i = 0; i < c->count; i++)
        sampler->near[i] = nearness(c->logits[i], expected);
    cut_by(c, sampler->near, wanted);
    return logits_sum(c->weights, c->count);
}

/* Draws from what top_k, then typical_p of what that left, then top_p, then min_p keep. */
static int32_t draw_weighted(struct sampler *sampler, float max, double u)
{
    const struct sampling *s = &sampler->settings;
    struct candidates c = {sampler->vocab_size, sampler->work, sampler->weights, sampler->ids};
    for (int32_t i = 0; c.ids != NULL && i < c.count; i++)
        c.ids[i] = i;
    if (s->top_k > 0 && s->top_k < sampler->vocab_size)
        cut_to_count(&c, s->top_k);
    double total = logits_weights(c.logits, c.count, max, s->temperature, c.weights);
    float heaviest = 1;
    if (is_typical(s->typical_p) && !isinf(max)) {
        total = keep_typical(sampler, &c, total);
        heaviest = logits_max(c.weights, c.count);
    }
    if (s->top_p < 1)
        cut_to_weight(&c, (double)s->top_p * total);
    const float min_p = s->min_p * heaviest;
    for (int32_t i = 0; i < c.count && min_p > 0; i++)
        c.weights[i] = c.weights[i] < min_p ? 0 : c.weights[i];
    if (s->top_p < 1 || min_p > 0)
        total = logits_sum(c.weights, c.count);
    int32_t place = place_at(c.weights, c.count, u * total);
    return c.ids == NULL ? place : c.ids[place];
}

/* In [0, 1), 53 bits: a function of seed, choice and number of tokens generated before. */
static double uniform(const struct sampler *sampler, int64_t num_generated)
{
    uint64_t seed = (uint64_t)sampler->settings.seed;
    uint64_t position = (uint64_t)num_generated;
    struct philox bits = {
        {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)sampler->settings.choice, 0}};
    bits = philox4x32_10(bits, (uint32_t)seed, (uint32_t)(seed >> 32));
    uint64_t word = (uint64_t)bits.word[0] << 32 | bits.word[1];
    return (double)(word >> 11) * 0x1p-53;
}

/* The id of what is drawn; -1: nothing is left. max: of the logits, none of which is NaN. */
static int32_t pick(const struct draw *draw, const float *logits, float max)
{
    struct sampler *sampler = draw->sampler;
    const float *adjusted = logits;
    if (sampler->work) {
        adjust(sampler, logits, draw);
        adjusted = sampler->work;
        max = logits_max(adjusted, sampler->vocab_size);
    }
    if (is_greedy(&sampler->settings))
        return best(adjusted, sampler->vocab_size, max, draw->banned, draw->num_banned);
    return max > -INFINITY ? draw_weighted(sampler, max, uniform(sampler, sampler->num_generated))
                           : -1;
}

/* log(sum of exp(logits - *max)) in double, in one order. NaN in, NaN out. */
static double log_sum(const float *logits, int32_t vocab_size, float *max)
{
    *max = logits_max(logits, vocab_size);
    return isnan(*max) ? NAN : log(logits_weights(logits, vocab_size, *max, 1, NULL));
}

static float logprob(float logit, float max, double sum)
{
    if (isnan(sum))
        return NAN;
    if (logit == max)
        return max == -INFINITY ? -INFINITY : (float)-sum;
    if (logit == -INFINITY || max == INFINITY)
        return -INFINITY;
    return (float)((double)logit - (double)max - sum);
}

/* Like logprobs_top, of the ids [count] instead of the best. */
static float logprobs_at(const float *logits, int32_t vocab_size, int32_t id, const int32_t *ids,
                         int count, struct token_logprob *out)
{
    float max;
    double sum = log_sum(logits, vocab_size, &max);
    for (int i = 0; i < count; i++)
        out[i] = (struct token_logprob){ids[i], logprob(logits[ids[i]], max, sum)};
    return logprob(logits[id], max, sum);
}

void sampler_draw(struct draw *draw, const float *logits)
{
    struct sampler *sampler = draw->sampler;
    int32_t vocab_size = sampler->vocab_size;
    float max = logits_max(logits, vocab_size);
    draw->id = draw->nan_id = -1;
    for (int32_t i = 0; isnan(max) && draw->nan_id < 0 && i < vocab_size; i++)
        if (isnan(logits[i]))
            draw->nan_id = i;
    if (draw->nan_id < 0)
        draw->id = pick(draw, logits, max);
    if (draw->id < 0)
        return;
    sampler_accept(sampler, draw->id);
    if (draw->wants_logprob && draw->wanted)
        draw->logprob =
            logprobs_at(logits, vocab_size, draw->id, draw->wanted, draw->num_top, draw->top);
    else if (draw->wants_logprob)
        draw->logprob = draw->num_top > 0
                            ? logprobs_top(logits, vocab_size, draw->id, draw->num_top, draw->top)
                            : logprob_of(logits, vocab_size, draw->id);
}

int draw_check(const struct draw *draw, struct error *err)
{
    if (draw->id >= 0)
        return 0;
    if (draw->nan_id >= 0)
        return error_set(err, ERROR_INTERNAL, "the logit of token %d is NaN", (int)draw->nan_id);
    return error_set(err, ERROR_INTERNAL, "no token is left to draw");
}

bool draw_ends(const struct draw *draw)
{
    return draw->id < 0 || contains(draw->ends, draw->num_ends, draw->id);
}

bool sampler_looks_back(const struct sampler *sampler)
{
    return sampler->counts != NULL || sampler->settings.masked;
}

struct sampler_request sampler_request(const struct draw *draw)
{
    const struct sampler *sampler = draw->sampler;
    const uint32_t *mask = mask_of(draw);
    return (struct sampler_request){
        .settings = &sampler->settings,
        .mask = mask,
        .mask_words = mask ? sampler_mask_words(sampler->vocab_size) : 0,
        .greedy = is_greedy(&sampler->settings),
        .seen = sampler->seen,
        .counts = sampler->counts,
        .num_seen = sampler->num_seen,
        .uniform = uniform(sampler, sampler->num_generated + draw->ahead)};
}

void sampler_accept(struct sampler *sampler, int32_t id)
{
    sampler->num_generated++;
    if (sampler->counts) {
        sampler->counts[id]++;
        see(sampler, id);
    }
}

float logprob_from(float logit, float max, double total)
{
    return logprob(logit, max, log(total));
}

float logprob_of(const float *logits, int32_t vocab_size, int32_t id)
{
    float max;
    double sum = log_sum(logits, vocab_size, &max);
    return logprob(logits[id], max, sum);
}

float logprobs_top(const float *logits, int32_t vocab_size, int32_t id, int count,
                   struct token_logprob *top)
{
    float max;
    double sum = log_sum(logits, vocab_size, &max);
    int found = 0;
    for (int32_t i = 0; i < vocab_size; i++) {
        if (found == count && (count == 0 || !(logits[i] > logits[top[count - 1].id])))
            continue;
        int at = found < count ? found++ : count - 1;
        while (at > 0 && logits[i] > logits[top[at - 1].id]) {
            top[at] = top[at - 1];
            at--;
        }
        top[at].id = i;
    }
    for (int i = 0; i < count; i++) {
        if (i >= found)
            top[i].id = -1;
        top[i].logprob = i < found ? logprob(logits[top[i].id], max, sum) : -INFINITY;
    }
    return logprob(logits[id], max, sum);
}

int32_t logprob_rank(const float *logits, int32_t vocab_size, int32_t id)
{
    int32_t rank = 1;
    for (int32_t i = 0; i < vocab_size; i++)
        rank += logits[i] > logits[id] || (logits[i] == logits[id] && i < id);
    return rank;
}
