/* SPDX-License-Identifier: Apache-2.0 */
/* What `regla compare` measures of two formats of one model, A and B, and how it is shown. Both are
 * open at once and compute the same tokens step by step, so that no logits are kept. */
#ifndef CLI_COMPARE_H
#define CLI_COMPARE_H

#include "bench/bench_pair.h"
#include "bench/bench_plan.h"
#include "bench/divergence.h"
#include "bench/questions.h"
#include "cli/scoring.h"

enum { COMPARED = 2, COMPARE_ANSWER_TOKENS = 24 };

struct compare_options {
    struct command_model_options model; /* without formats */
    struct scoring_options scoring;
    const char *questions, *chat_template;
    int64_t pp, tg, repeat;
    bool json;
};

struct compare_answer {
    char *text; /* UTF-8 with a NUL after it; owned */
    size_t length;
    bool right;
};

struct comparison {
    const struct compare_options *options;
    const char *directory;
    const char *text;                    /* a file; NULL: no text */
    bool has_questions;                  /* to ask */
    struct bench_case formats[COMPARED]; /* as asked for; once the models are open, as they are */
    struct command_model models[COMPARED];
    /* of the text */
    struct scoring scoring;
    struct divergences divergences;
    struct divergence_summary divergence;
    /* of the questions */
    struct questions questions;
    struct chat_template template;
    struct compare_answer *answers[COMPARED]; /* [questions_count] */
    size_t right[COMPARED];
    struct bench_pair paces[COMPARED]; /* tokens per second */
    int pp, tg;                        /* tokens of these: no more than the model has positions */
};

/* compare_text.c: opens the text, before the models are; predicts its tokens with both. */
int compare_open_text(struct comparison *comparison, struct error *err);
int compare_text(struct comparison *comparison, struct error *err);

/* compare_questions.c: opens the chat template, once the models are open; asks both all questions,
 * each in a chat of its own, greedily. */
int compare_open_template(struct comparison *comparison, struct error *err);
int compare_questions(struct comparison *comparison, struct error *err);

/* compare_print.c */
void compare_print_table(const struct comparison *comparison);
int compare_print_json(const struct comparison *comparison, struct error *err);

#endif
