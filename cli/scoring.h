/* SPDX-License-Identifier: Apache-2.0 */
/* Scores the documents of a file: how likely a model finds each token after all before it. Several
 * engines of one model may score the same tokens beside each other, for a comparison.
 *
 * Every document is one text: the model's BOS (when it has one, and the tokenizer's template did
 * not put it there already), then its tokens, each predicted from all before it. Several documents
 * share a step.
 *
 * A document that is longer than a window is scored in several. Each begins where the last ended.
 * With a stride S each begins S inputs after the last began, and scores only what no window before
 * it has scored: every prediction then has at least window - S inputs before it, or the whole
 * document. That is the sliding window of Hugging Face's guide on perplexity, whose
 * max_length is one more than our window, since it counts the last target too. */
#ifndef CLI_SCORING_H
#define CLI_SCORING_H

#include "cli/command_model.h"
#include "cli/documents.h"

struct scoring_options {
    int64_t context, stride;
    int64_t tokens; /* no flag: score so many at most; 0: all */
    const char *format;
    bool quiet;
};

/* Entries of an options table; `type` is the command's struct, whose member `scoring` this is. */
#define SCORING_OPTIONS(type)                                                                  \
    {"context",                                                                                \
     OPTION_INTEGER,                                                                           \
     offsetof(type, scoring.context),                                                          \
     "tokens",                                                                                 \
     "0",                                                                                      \
     0,                                                                                        \
     1e12,                                                                                     \
     NULL,                                                                                     \
     "score in windows of so many tokens, each without what came before;\n      0: every "     \
     "document whole or, where memory is short, in the largest windows that fit"},             \
        {"stride",                                                                             \
         OPTION_INTEGER,                                                                       \
         offsetof(type, scoring.stride),                                                       \
         "tokens",                                                                             \
         "0",                                                                                  \
         0,                                                                                    \
         1e12,                                                                                 \
         NULL,                                                                                 \
         "begin each window so many tokens after the last, and score only what is new in it: " \
         "the rest\n      is context; 0: windows do not overlap"},                             \
        DOCUMENTS_FORMAT_OPTION(offsetof(type, scoring.format)),                               \
    {                                                                                          \
        "quiet", OPTION_FLAG, offsetof(type, scoring.quiet), NULL, "false", 0, 0, NULL,        \
            "print no progress to standard error"                                              \
    }

enum {
    SCORING_MOST_MODELS = 2,
    SCORING_STEP_TOKENS = 512, /* of the engines, which give the logits of all of them */
    SCORING_MOST_ACTIVE = 64,  /* documents read ahead to fill a step */
};

/* A token that was predicted. */
struct prediction {
    const float *logits[SCORING_MOST_MODELS]; /* [vocab_size], until the next step */
    double nll[SCORING_MOST_MODELS];          /* nats */
    int64_t document;                         /* its number from 0, in the file's order */
    size_t before;                            /* tokens of its window before it */
};

/* A document being scored: ids[next] is fed next, and predicts ids[next + 1]. A window feeds ids
 * [window_start, window_end), and scores the predictions of those from `scored` on. */
struct scoring_document {
    struct token_list ids;
    size_t next, scored, window_start, window_end;
    struct state *states[SCORING_MOST_MODELS]; /* NULL: its window has not begun */
    int64_t number;
    double nll[SCORING_MOST_MODELS];
};

/* Zero-initialise and set the first part; scoring_clear frees the rest. */
struct scoring {
    const struct scoring_options *options;
    const struct command_model *models; /* [num_models], of one model; the first has a tokenizer */
    int num_models;
    void *context; /* of these, which may be NULL: */
    /* A document was read, of valid UTF-8; before its tokens are predicted. */
    int (*read)(void *context, const char *text, size_t length, struct error *err);
    int (*predicted)(void *context, const struct prediction *prediction, struct error *err);

    struct documents documents;
    struct scoring_document active[SCORING_MOST_ACTIVE];
    int num_active;
    int64_t num_documents, tokens_read, tokens;
    double nll[SCORING_MOST_MODELS]; /* nats */
    bool windowed;                   /* the note about windows is printed */
    double start, last_progress;
};

/* Opens the file (documents.h), before models take time to load. */
int scoring_open(struct scoring *scoring, const char *path, struct error *err);
/* Scores all documents, of which at least one must have a token to predict. */
int scoring_run(struct scoring *scoring, struct error *err);
void scoring_clear(struct scoring *scoring);

/* exp() of a mean over the units. */
double scoring_perplexity(double nll, int64_t units);

#endif
