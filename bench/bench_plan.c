/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_plan.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ITEMS = 64, MOST_CASES = 4096, ITEM_LENGTH = 32 };

struct list {
    int items[MOST_ITEMS];
    int count;
};

/* Items of a list; what they mean is known to `read`, whose *err says what was expected. */
typedef int read_item(const char *text, int min, int max, int *out, struct error *err);

static int read_integer(const char *text, int min, int max, int *out, struct error *err)
{
    int64_t value = 0;
    const char *at = text;
    while (*at >= '0' && *at <= '9' && value <= INT32_MAX)
        value = value * 10 + (*at++ - '0');
    if (at == text || *at != 0 || value < min || value > max)
        return error_set(err, ERROR_INVALID, "expected an integer from %d to %d, got \"%s\"", min,
                         max, text);
    *out = (int)value;
    return 0;
}

static int read_weights(const char *text, int min, int max, int *out, struct error *err)
{
    enum weight_format format;
    char names[128];
    (void)min;
    (void)max;
    if (!weight_format_find(text, &format))
        return error_set(err, ERROR_INVALID, "expected %s, got \"%s\"",
                         weight_format_names(names, sizeof names), text);
    *out = (int)format;
    return 0;
}

static int read_kv(const char *text, int min, int max, int *out, struct error *err)
{
    enum kv_format format;
    (void)min;
    (void)max;
    if (!kv_format_find(text, &format))
        return error_set(err, ERROR_INVALID, "expected auto, f32, f16 or bf16, got \"%s\"", text);
    *out = (int)format;
    return 0;
}

static int read_activations(const char *text, int min, int max, int *out, struct error *err)
{
    enum activation_format format;
    (void)min;
    (void)max;
    if (!activation_format_find(text, &format))
        return error_set(err, ERROR_INVALID, "expected auto, f32, 16bit or 8bit, got \"%s\"", text);
    *out = (int)format;
    return 0;
}

static int read_products(const char *text, int min, int max, int *out, struct error *err)
{
    enum products products;
    (void)min;
    (void)max;
    if (!products_find(text, &products))
        return error_set(err, ERROR_INVALID, "expected own or cublaslt, got \"%s\"", text);
    *out = (int)products;
    return 0;
}

/* What is too long for an item is no item, and is cut in the message. */
static void cut_item(char item[ITEM_LENGTH], const char *text, size_t length)
{
    snprintf(item, ITEM_LENGTH, "%.*s", (int)(length < ITEM_LENGTH ? length : ITEM_LENGTH), text);
}

static int read_list(struct list *list, const char *name, const char *text, read_item *read,
                     int min, int max, struct error *err)
{
    list->count = 0;
    for (const char *at = text;; at++) {
        char item[ITEM_LENGTH];
        size_t length = strcspn(at, ",");
        if (list->count == MOST_ITEMS)
            return error_set(err, ERROR_INVALID, "--%s: expected at most %d items", name,
                             MOST_ITEMS);
        cut_item(item, at, length);
        if (read(item, min, max, &list->items[list->count], err) != 0)
            return error_prefix(err, "--%s: item %d", name, list->count + 1);
        list->count++;
        at += length;
        if (*at == 0)
            return 0;
    }
}

struct lists {
    struct list pp, tg, depth, batch, weights, kv, activations, products, threads;
};

static int read_lists(struct lists *out, const struct bench_lists *in, struct error *err)
{
    const struct {
        struct list *list;
        const char *name, *text;
        read_item *read;
        int min, max;
    } all[] = {
        {&out->pp, "pp", in->pp, read_integer, 0, 10000000},
        {&out->tg, "tg", in->tg, read_integer, 0, 10000000},
        {&out->depth, "depth", in->depth, read_integer, 0, 100000000},
        {&out->batch, "batch", in->batch, read_integer, 1, 4096},
        {&out->weights, "weights", in->weights, read_weights, 0, 0},
        {&out->kv, "kv", in->kv, read_kv, 0, 0},
        {&out->activations, "activations", in->activations, read_activations, 0, 0},
        {&out->products, "products", in->products, read_products, 0, 0},
        {&out->threads, "threads", in->threads, read_integer, 0, 1024},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (read_list(all[i].list, all[i].name, all[i].text, all[i].read, all[i].min, all[i].max,
                      err) != 0)
            return -1;
    return 0;
}

/* Adds the tests of one kind, at one place in the other lists. */
static void add(struct bench_plan *plan, const struct bench_case *like, bool generates,
                const struct list *tokens)
{
    for (int i = 0; i < tokens->count; i++) {
        if (tokens->items[i] == 0)
            continue;
        plan->cases[plan->count] = *like;
        plan->cases[plan->count].generates = generates;
        plan->cases[plan->count].tokens = tokens->items[i];
        plan->count++;
    }
}

/* The last list turns fastest: a reader compares what stands beside each other. */
static void combine(struct bench_plan *plan, const struct lists *lists)
{
    const struct list *turning[] = {&lists->batch,    &lists->depth,       &lists->kv,
                                    &lists->products, &lists->activations, &lists->weights,
                                    &lists->threads};
    enum { TURNING = sizeof turning / sizeof *turning };
    int at[TURNING] = {0}, i;
    do {
        const struct bench_case like = {
            .batch = lists->batch.items[at[0]],
            .depth = lists->depth.items[at[1]],
            .kv = (enum kv_format)lists->kv.items[at[2]],
            .products = (enum products)lists->products.items[at[3]],
            .activations = (enum activation_format)lists->activations.items[at[4]],
            .weights = (enum weight_format)lists->weights.items[at[5]],
            .threads = lists->threads.items[at[6]],
        };
        add(plan, &like, false, &lists->pp);
        add(plan, &like, true, &lists->tg);
        for (i = 0; i < TURNING && ++at[i] == turning[i]->count; i++)
            at[i] = 0;
    } while (i < TURNING);
}

int bench_plan_make(struct bench_plan *plan, const struct bench_lists *in, struct error *err)
{
    struct lists lists;
    *plan = (struct bench_plan){0};
    if (read_lists(&lists, in, err) != 0)
        return -1;
    int64_t count = lists.pp.count + lists.tg.count;
    count *= (int64_t)lists.depth.count * lists.batch.count;                      /* < 2^19 */
    count *= (int64_t)lists.weights.count * lists.kv.count * lists.threads.count; /* < 2^37 */
    count *= (int64_t)lists.activations.count * lists.products.count;             /* < 2^49 */
    if (count > MOST_CASES)
        return error_set(err, ERROR_INVALID,
                         "the lists have %lld combinations, expected at most %d", (long long)count,
                         MOST_CASES);
    plan->cases = calloc((size_t)count, sizeof *plan->cases);
    if (plan->cases == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %lld tests", (long long)count);
    combine(plan, &lists);
    if (plan->count == 0)
        return error_set(err, ERROR_INVALID,
                         "--pp, --tg: expected at least one length that is not 0");
    return 0;
}

void bench_plan_clear(struct bench_plan *plan)
{
    free(plan->cases);
    *plan = (struct bench_plan){0};
}

int bench_formats_read(struct bench_case *test, const char *text, struct error *err)
{
    static const struct {
        const char *name;
        read_item *read;
    } parts[] = {{"weights", read_weights}, {"activations", read_activations}, {"KV", read_kv}};
    enum { PARTS = sizeof parts / sizeof *parts };
    int formats[PARTS];
    const char *at = text;
    for (int i = 0; i < PARTS; i++) {
        char item[ITEM_LENGTH];
        size_t length = strcspn(at, "/");
        cut_item(item, at, length);
        if (parts[i].read(length == 0 ? "auto" : item, 0, 0, &formats[i], err) != 0)
            return error_prefix(err, "%s", parts[i].name);
        at += length;
        if (*at == '/' && i + 1 < PARTS)
            at++;
    }
    if (*at != 0)
        return error_set(err, ERROR_INVALID,
                         "expected WEIGHTS/ACTIVATIONS/KV, as q8/8bit/f16, got \"%.60s\"", text);
    test->weights = (enum weight_format)formats[0];
    test->activations = (enum activation_format)formats[1];
    test->kv = (enum kv_format)formats[2];
    return 0;
}

void bench_formats_name(const struct bench_case *test, char name[BENCH_FORMATS_SIZE])
{
    snprintf(name, BENCH_FORMATS_SIZE, "%s/%s/%s", weight_format_name(test->weights),
             activation_format_name(test->activations), kv_format_name(test->kv));
}

struct cost_texts bench_case_texts(const struct bench_case *test)
{
    return (struct cost_texts){.generates = test->generates,
                               .tokens = test->tokens,
                               .depth = test->depth,
                               .batch = test->batch};
}

void bench_case_name(const struct bench_case *test, char name[48])
{
    int length = snprintf(name, 48, "%s%d", test->generates ? "tg" : "pp", test->tokens);
    if (test->depth > 0)
        snprintf(name + length, 48 - (size_t)length, "@%d", test->depth);
}
