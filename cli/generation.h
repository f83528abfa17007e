/* SPDX-License-Identifier: Apache-2.0 */
/* Draws a text after a prompt and prints it to standard output, token by token: for the commands
 * that generate on the terminal, and their flags. */
#ifndef CLI_GENERATION_H
#define CLI_GENERATION_H

#include "cli/options.h"
#include "engine/engine.h"
#include "engine/model/author_sampling.h"
#include "engine/ops/sampler.h"
#include "lib/grammar/grammar_text.h"
#include "lib/text/detokenize.h"
#include "server/schedule/stop.h"

#include <signal.h>

struct generation_options {
    int64_t max_tokens, seed;
    union generation_number {
        double real;   /* NAN: not given */
        int64_t whole; /* of integers; INT64_MIN: not given */
    } numbers[SAMPLING_COUNT];
    const char *generation_config;
    struct option_list stop;
    bool ignore_eos;
};

#define GENERATION_AT(type, name) offsetof(type, generation.numbers[SAMPLING_##name])
/* Entries of an options table; `type` is the command's struct, whose member `generation` this is;
 * `most`: max_tokens by default, a string. */
#define GENERATION_OPTIONS(type, most)                                                           \
    {"max-tokens", OPTION_INTEGER, offsetof(type, generation.max_tokens),                        \
     "tokens",     most,           1,                                                            \
     1e9,          NULL,           "most tokens to generate"},                                   \
        {"temperature",                                                                          \
         OPTION_NUMBER,                                                                          \
         GENERATION_AT(type, temperature),                                                       \
         "NUMBER",                                                                               \
         "auto",                                                                                 \
         0,                                                                                      \
         2,                                                                                      \
         NULL,                                                                                   \
         "how freely to draw; 0: always the likeliest token; auto: as the model's author says, " \
         "else 0.8"},                                                                            \
        {"top-p",                                                                                \
         OPTION_NUMBER,                                                                          \
         GENERATION_AT(type, top_p),                                                             \
         "NUMBER",                                                                               \
         "auto",                                                                                 \
         1e-6,                                                                                   \
         1,                                                                                      \
         NULL,                                                                                   \
         "draw from the likeliest tokens that have this probability together; auto: as the "     \
         "model's author says, else 0.95"},                                                      \
        {"top-k",                                                                                \
         OPTION_INTEGER,                                                                         \
         GENERATION_AT(type, top_k),                                                             \
         "tokens",                                                                               \
         "auto",                                                                                 \
         -1,                                                                                     \
         1e9,                                                                                    \
         NULL,                                                                                   \
         "draw from so many of the likeliest tokens; 0: from all; auto: as the model's author "  \
         "says, else 0"},                                                                        \
        {"min-p",                                                                                \
         OPTION_NUMBER,                                                                          \
         GENERATION_AT(type, min_p),                                                             \
         "NUMBER",                                                                               \
         "auto",                                                                                 \
         0,                                                                                      \
         1,                                                                                      \
         NULL,                                                                                   \
         "draw no token that is less likely than this share of the likeliest; auto: as the "     \
         "model's author says, else 0"},                                                         \
        {"typical-p",                                                                            \
         OPTION_NUMBER,                                                                          \
         GENERATION_AT(type, typical_p),                                                         \
         "NUMBER",                                                                               \
         "auto",                                                                                 \
         1e-6,                                                                                   \
         1,                                                                                      \
         NULL,                                                                                   \
         "draw from the most typical tokens that have this probability together; 1: from all; "  \
         "auto: as the model's author says, else 1"},                                            \
        {"presence-penalty",                                                                     \
         OPTION_NUMBER,                                                                          \
         GENERATION_AT(type, presence_penalty),                                                  \
         "NUMBER",                                                                               \
         "0",                                                                                    \
         -2,                                                                                     \
         2,                                                                                      \
         NULL,                                                                                   \
         "subtracted from the logit of every token generated before"},                           \
        {"frequency-penalty",                                                                    \
         OPTION_NUMBER,                                                                          \
         GENERATION_AT(type, frequency_penalty),                                                 \
         "NUMBER",                                                                               \
         "0",                                                                                    \
         -2,                                                                                     \
         2,                                                                                      \
         NULL,                                                                                   \
         "the same, for each time it was generated"},                                            \
        {"repetition-penalty",                                                                   \
         OPTION_NUMBER,                                                                          \
         GENERATION_AT(type, repetition_penalty),                                                \
         "NUMBER",                                                                               \
         "auto",                                                                                 \
         1e-6,                                                                                   \
         1e6,                                                                                    \
         NULL,                                                                                   \
         "divides the logits of tokens seen before, in the prompt too; 1: off; auto: as the "    \
         "model's author says, else 1"},                                                         \
        {"seed",                                                                                 \
         OPTION_INTEGER,                                                                         \
         offsetof(type, generation.seed),                                                        \
         "SEED",                                                                                 \
         "-1",                                                                                   \
         -1,                                                                                     \
         9e15,                                                                                   \
         NULL,                                                                                   \
         "equal seeds draw equal tokens; -1: a new one, which is printed at the end"},           \
        {"generation-config",                                                                    \
         OPTION_CHOICE,                                                                          \
         offsetof(type, generation.generation_config),                                           \
         NULL,                                                                                   \
         "auto",                                                                                 \
         0,                                                                                      \
         0,                                                                                      \
         "auto|off",                                                                             \
         "auto: sample as the model's generation_config.json, or general.sampling of a GGUF "    \
         "file, says; off: not"},                                                                \
        {"stop", OPTION_LIST, offsetof(type, generation.stop),                                   \
         "TEXT", NULL,        0,                                                                 \
         0,      NULL,        "end before this text (may be given more than once)"},             \
    {                                                                                            \
        "ignore-eos", OPTION_FLAG, offsetof(type, generation.ignore_eos), NULL, "false", 0, 0,   \
            NULL, "go on after the model's end of text"                                          \
    }

struct generation {
    const struct generation_options *options;
    const char *path; /* of the model; NULL: a preset's */
    struct engine *engine;
    const struct tokenizer *tokenizer;
    bool numbers;                             /* a preset: the text is token ids */
    bool behind;                              /* of numbers: others stand before them */
    const volatile sig_atomic_t *interrupted; /* not 0: it ends; NULL: nobody interrupts */
    int64_t seed;
    struct author_sampling author; /* {0}: it is not followed */
    struct stop_set *stops;        /* NULL: none */
    struct grammar_text *form;     /* borrowed: what constrains the one text; NULL: nothing */
    /* Of one text. */
    struct sampler *sampler;
    struct draw draw; /* the next token */
    struct detokenizer *detokenizer;
    struct stop_scan scan;
    struct token_list taken; /* drawn, without an EOS */
    char number[16];         /* a token of a preset */
    char *held;              /* [held_length]: may be the beginning of a stop string */
    size_t held_length, held_capacity;
    int64_t limit, generated; /* tokens */
    const char *reason;       /* of its end */
};

/* Makes what all texts share: the seed and the stop strings. The caller has set the members above.
 */
int generation_open(struct generation *generation, struct error *err);
/* Prepares for a text after prompt [count]. choice: of its number; texts of other numbers draw
 * other tokens. */
int generation_begin(struct generation *generation, const int32_t *prompt, size_t count,
                     int32_t choice, struct error *err);
/* How many tokens may be drawn after a prompt of `count`, by max_tokens and the model's positions.
 */
int64_t generation_limit(const struct generation *generation, size_t count);
/* Draws and prints, from the first token, which the caller has let draw (generation->draw), until
 * something ends it. state: of the prompt. */
int generation_run(struct generation *generation, struct state *state, struct error *err);
void generation_clear(struct generation *generation);

/* Prints to standard output. */
int generation_write(const char *text, size_t length, struct error *err);

#endif
