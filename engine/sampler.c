#include "engine/sampler.h"

#include "engine/base/philox.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct sampler {
    struct sampling settings; /* logit_bias is ours */
    int32_t vocab_size;
    int64_t num_generated;
    float *work; /* [V] adjusted logits, then weights; NULL: greedy on untouched logits */
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
    if (!is_greedy(s) || has_penalties(s) || s->num_logit_bias > 0)
        missing |= !(sampler->work = malloc(vocab * sizeof *sampler->work));
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
    sampler->settings.repetition_penalty = fmaxf(sampling->repetition_penalty, FLT_MIN);
    if (copy_bias(sampler, sampling, err) != 0 || allocate(sampler, err) != 0) {
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
    free(sampler->work);
    free(sampler->counts);
    free(sampler->seen);
    free(sampler->is_seen);
    free(sampler);
}

/* Logits, bias, penalties and ban into work. */
static void adjust(struct sampler *sampler, const float *logits, const int32_t *banned,
                   size_t num_banned)
{
    const struct sampling *s = &sampler->settings;
    float *work = sampler->work;
    memcpy(work, logits, (size_t)sampler->vocab_size * sizeof *work);
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
    for (size_t i = 0; i < num_banned; i++)
        if (banned[i] >= 0 && banned[i] < sampler->vocab_size)
            work[banned[i]] = -INFINITY;
}

static bool contains(const int32_t *ids, size_t count, int32_t id)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* The id of the largest logit that is not banned (ties: the smallest id); -1: none above -inf. */
static int32_t best(const float *logits, int32_t vocab_size, const int32_t *banned,
                    size_t num_banned)
{
    int32_t id = -1;
    float max = -INFINITY;
    for (int32_t i = 0; i < vocab_size; i++) {
        if (logits[i] > max && !contains(banned, num_banned, i)) {
            max = logits[i];
            id = i;
        }
    }
    return id;
}

/* exp((logit - max) / temperature), where a logit may be infinite; max is the largest. */
static double weight(float logit, float max, float temperature)
{
    if (logit == max)
        return 1;
    if (logit == -INFINITY || max == INFINITY)
        return 0;
    return exp(((double)logit - (double)max) / (double)temperature);
}

/* A set of the best candidates: those whose key is above `key`, and of those who have it the first
 * `ties` ids. */
struct cut {
    uint32_t key;
    int32_t ties;
};

static const struct cut keep_all = {0, INT32_MAX};

/* An integer in the order of the floats, which may be infinite but not NaN; -0 is 0. */
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

/* Whether a candidate is in the set; ids must be asked for in rising order, with *ties 0 first. */
static bool in_cut(struct cut cut, uint32_t key, int32_t *ties)
{
    return key > cut.key || (key == cut.key && (*ties)++ < cut.ties);
}

#define DIGIT_BITS 11
#define DIGITS (1 << DIGIT_BITS)

enum measure { BY_COUNT, BY_MASS };

/* How much of `within` has each value of one digit of its keys, among keys that begin with prefix
 * (all of them at shift 22). */
static void fill_bins(const struct sampler *sampler, float max, struct cut within,
                      enum measure measure, int shift, uint32_t prefix, double *bins)
{
    const float *logits = sampler->work;
    int32_t ties = 0;
    memset(bins, 0, DIGITS * sizeof *bins);
    for (int32_t i = 0; i < sampler->vocab_size; i++) {
        uint32_t key = order_key(logits[i]);
        if (logits[i] == -INFINITY || !in_cut(within, key, &ties) ||
            (uint64_t)key >> (shift + DIGIT_BITS) != prefix)
            continue;
        double amount =
            measure == BY_COUNT ? 1 : weight(logits[i], max, sampler->settings.temperature);
        bins[key >> shift & (DIGITS - 1)] += amount;
    }
}

/* The smallest set of the best in `within` that reaches `wanted`: so many candidates, or that share
 * of the mass of `within`. Finds the last one's key digit by digit, sorting nothing. */
static struct cut best_reaching(const struct sampler *sampler, float max, struct cut within,
                                enum measure measure, double wanted)
{
    double bins[DIGITS];
    double above = 0; /* what is certainly in the set */
    uint32_t prefix = 0;
    for (int shift = 2 * DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        fill_bins(sampler, max, within, measure, shift, prefix, bins);
        if (shift == 2 * DIGIT_BITS && measure == BY_MASS) {
            double total = 0;
            for (int digit = DIGITS - 1; digit >= 0; digit--)
                total += bins[digit];
            wanted *= total;
        }
        int last = 0; /* the lowest that holds something, should rounding keep us from `wanted` */
        int found = -1;
        for (int digit = DIGITS - 1; digit >= 0 && found < 0; digit--) {
            if (bins[digit] == 0)
                continue;
            last = digit;
            if (above + bins[digit] >= wanted)
                found = digit;
            else
                above += bins[digit];
        }
        if (found < 0) {
            found = last;
            above -= bins[last];
        }
        prefix = prefix << DIGIT_BITS | (uint32_t)found;
    }
    double each =
        measure == BY_COUNT ? 1 : weight(logit_of_key(prefix), max, sampler->settings.temperature);
    double ties = each > 0 ? ceil((wanted - above) / each) : INT32_MAX;
    return (struct cut){prefix, ties < 1 ? 1 : ties > INT32_MAX ? INT32_MAX : (int32_t)ties};
}

/* Draws from what top_k, then top_p of what that left, then min_p keep. */
static int32_t draw(struct sampler *sampler, float max, double u)
{
    const struct sampling *s = &sampler->settings;
    struct cut cut = keep_all;
    if (s->top_k > 0 && s->top_k < sampler->vocab_size)
        cut = best_reaching(sampler, max, cut, BY_COUNT, s->top_k);
    if (s->top_p < 1)
        cut = best_reaching(sampler, max, cut, BY_MASS, (double)s->top_p);
    float *weights = sampler->work;
    int32_t ties = 0;
    double total = 0;
    for (int32_t i = 0; i < sampler->vocab_size; i++) {
        double w = 0;
        if (in_cut(cut, order_key(weights[i]), &ties))
            w = weight(weights[i], max, s->temperature);
        weights[i] = w < (double)s->min_p ? 0 : (float)w;
        total += (double)weights[i];
    }
    double target = u * total;
    double sum = 0;
    int32_t last = -1; /* should rounding keep the sum from passing the target */
    for (int32_t i = 0; i < sampler->vocab_size; i++) {
        if (weights[i] == 0)
            continue;
        last = i;
        sum += (double)weights[i];
        if (sum > target)
            break;
    }
    return last;
}

/* In [0, 1), 53 bits: a function of seed, choice and number of tokens generated so far. */
static double uniform(const struct sampler *sampler)
{
    uint64_t seed = (uint64_t)sampler->settings.seed;
    uint64_t position = (uint64_t)sampler->num_generated;
    struct philox bits = {
        {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)sampler->settings.choice, 0}};
    bits = philox4x32_10(bits, (uint32_t)seed, (uint32_t)(seed >> 32));
    uint64_t word = (uint64_t)bits.word[0] << 32 | bits.word[1];
    return (double)(word >> 11) * 0x1p-53;
}

int32_t sampler_pick(struct sampler *sampler, const float *logits, const int32_t *banned,
                     size_t num_banned, struct error *err)
{
    for (int32_t i = 0; i < sampler->vocab_size; i++)
        if (isnan(logits[i]))
            return error_set(err, ERROR_INTERNAL, "the logit of token %d is NaN", (int)i);
    const float *adjusted = logits;
    if (sampler->work) {
        adjust(sampler, logits, banned, num_banned);
        adjusted = sampler->work;
    }
    int32_t id = best(adjusted, sampler->vocab_size, banned, num_banned);
    if (id < 0)
        return error_set(err, ERROR_INTERNAL, "no token is left to draw");
    if (!is_greedy(&sampler->settings)) {
        float max = adjusted[id];
        id = draw(sampler, max, uniform(sampler));
    }
    sampler->num_generated++;
    if (sampler->counts) {
        sampler->counts[id]++;
        see(sampler, id);
    }
    return id;
}

/* log(sum of exp(logits - *max)) in double, in the order of the ids. NaN in, NaN out. */
static double log_sum(const float *logits, int32_t vocab_size, float *max)
{
    *max = -INFINITY;
    for (int32_t i = 0; i < vocab_size; i++)
        if (logits[i] > *max)
            *max = logits[i];
    double sum = 0;
    for (int32_t i = 0; i < vocab_size; i++)
        sum += isnan(logits[i]) ? NAN : weight(logits[i], *max, 1);
    return log(sum);
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
