/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/compare.h"

#include "cli/command.h"
#include "engine/model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_SHOWN = 20 }; /* of questions that one alone has right; JSON has all */

static double perplexity(const struct comparison *c, int which)
{
    return scoring_perplexity(c->scoring.nll[which], c->scoring.tokens);
}

/* "+1.25 %" of b against a */
static void print_change(double a, double b)
{
    printf("   %+.2f %%\n", 100 * (b / a - 1));
}

static void print_pace(const char *what, int tokens, double a, double b)
{
    char label[64];
    snprintf(label, sizeof label, "tokens/s, %s%d", what, tokens);
    if (tokens == 0)
        return;
    printf("%-24s %14.1f %14.1f", label, a, b);
    print_change(a, b);
}

static void print_text(const struct comparison *c)
{
    const struct divergence_summary *d = &c->divergence;
    printf("\nB's next token from A's, %" PRId64 " of %s:\n", c->scoring.tokens,
           c->scoring.documents.name);
    printf("divergence (nats)        mean %.4g, 99th hundredth %.4g, worst %.4g\n", d->mean, d->p99,
           d->worst);
    printf("same best token          %.2f %%\n", 100 * d->same_best);
}

/* On one line, of which a terminal takes nothing for an order. */
static void print_line(const char *label, const char *text, size_t length)
{
    printf("%s", label);
    for (size_t i = 0; i < length; i++)
        putchar((unsigned char)text[i] < ' ' || text[i] == 0x7f ? ' ' : text[i]);
    putchar('\n');
}

/* The questions that one of the two alone answers right. */
static void print_answers(const struct comparison *c)
{
    int shown = 0;
    for (size_t i = 0; i < questions_count(&c->questions); i++) {
        const struct compare_answer *a = &c->answers[0][i], *b = &c->answers[1][i];
        size_t length;
        if (a->right == b->right)
            continue;
        if (shown++ == MOST_SHOWN) {
            printf("\nand more, which --json has\n");
            return;
        }
        const char *question = questions_text(&c->questions, i, &length);
        printf("\nonly %s right: ", a->right ? "A" : "B");
        print_line("", question, length);
        print_line("  A: ", a->text, a->length);
        print_line("  B: ", b->text, b->length);
    }
}

void compare_print_table(const struct comparison *c)
{
    const struct engine_info *info = engine_info(c->models[0].engine);
    char names[COMPARED][BENCH_FORMATS_SIZE];
    for (int i = 0; i < COMPARED; i++)
        bench_formats_name(&c->formats[i], names[i]);
    printf("%s on %s, %s, %d threads\n\n", engine_model(c->models[0].engine)->name, info->device,
           info->instruction_set, info->threads);
    printf("%-24s %14s %14s   B against A\n", "", "A", "B");
    printf("%-24s %14s %14s\n", "weights/activations/KV", names[0], names[1]);
    if (c->text) {
        printf("%-24s %14.4f %14.4f", "perplexity per token", perplexity(c, 0), perplexity(c, 1));
        print_change(perplexity(c, 0), perplexity(c, 1));
    }
    if (c->has_questions) {
        char label[32];
        snprintf(label, sizeof label, "right answers of %zu", questions_count(&c->questions));
        printf("%-24s %14zu %14zu\n", label, c->right[0], c->right[1]);
    }
    print_pace("pp", c->pp, c->paces[0].prompt, c->paces[1].prompt);
    print_pace("tg", c->tg, c->paces[0].generation, c->paces[1].generation);
    if (c->text)
        print_text(c);
    if (c->has_questions)
        print_answers(c);
}

/* What was measured of one of the two. */
static json_t *side_json(const struct comparison *c, int which)
{
    const struct bench_case *formats = &c->formats[which];
    const struct engine_info *info = engine_info(c->models[which].engine);
    const struct bench_pair *pace = &c->paces[which];
    json_t *json = json_pack("{ss ss ss ss sI}", "weights", weight_format_name(formats->weights),
                             "activations", activation_format_name(formats->activations), "kv",
                             kv_format_name(formats->kv), "unit", info->unit, "weights_bytes",
                             (json_int_t)info->weights_bytes);
    if (c->text) {
        json_object_set_new(json, "nll", command_number(c->scoring.nll[which]));
        json_object_set_new(json, "ppl_token", command_number(perplexity(c, which)));
    }
    if (c->has_questions)
        json_object_set_new(json, "right", json_integer((json_int_t)c->right[which]));
    if (c->pp > 0)
        json_object_set_new(json, "prompt_tokens_per_second", command_number(pace->prompt));
    if (c->tg > 0)
        json_object_set_new(json, "generated_tokens_per_second", command_number(pace->generation));
    return json;
}

static json_t *text_json(const struct comparison *c)
{
    const struct divergence_summary *d = &c->divergence;
    return json_pack("{ss sI sI sI s{so so so} sf}", "file", c->scoring.documents.name, "documents",
                     (json_int_t)c->scoring.num_documents, "tokens", (json_int_t)c->scoring.tokens,
                     "context", (json_int_t)c->options->scoring.context, "divergence", "mean",
                     command_number(d->mean), "p99", command_number(d->p99), "worst",
                     command_number(d->worst), "same_best", d->same_best);
}

static json_t *answer_json(const struct compare_answer *answer)
{
    return json_pack("{ss% sb}", "answer", answer->text, answer->length, "right", answer->right);
}

static json_t *answers_json(const struct comparison *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < questions_count(&c->questions); i++) {
        size_t length;
        const char *question = questions_text(&c->questions, i, &length);
        json_array_append_new(list, json_pack("{ss% sO so so}", "question", question, length,
                                              "accepted", questions_accepted(&c->questions, i), "a",
                                              answer_json(&c->answers[0][i]), "b",
                                              answer_json(&c->answers[1][i])));
    }
    return list;
}

int compare_print_json(const struct comparison *c, struct error *err)
{
    const struct engine_info *info = engine_info(c->models[0].engine);
    json_t *json =
        json_pack("{ss ss ss si so so}", "model", engine_model(c->models[0].engine)->name, "device",
                  info->device, "instruction_set", info->instruction_set, "threads", info->threads,
                  "a", side_json(c, 0), "b", side_json(c, 1));
    if (c->text)
        json_object_set_new(json, "text", text_json(c));
    if (c->has_questions)
        json_object_set_new(json, "questions",
                            json_pack("{ss si so}", "file", c->questions.name, "count",
                                      (int)questions_count(&c->questions), "answers",
                                      answers_json(c)));
    return command_print_json(json, JSON_INDENT(2) | JSON_REAL_PRECISION(10), err);
}
