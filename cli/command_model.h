/* SPDX-License-Identifier: Apache-2.0 */
/* What the computing commands share: they open a model, feed it a text, read standard input, and
 * have flags for all that. */
#ifndef CLI_COMMAND_MODEL_H
#define CLI_COMMAND_MODEL_H

#include "cli/options.h"
#include "engine/engine.h"
#include "lib/jinja/chat_template.h"
#include "lib/text/tokenizer.h"

struct model;

struct command_model_options {
    const char *preset; /* NULL: a directory is given */
    int64_t threads;
    int64_t state_memory, device_memory; /* bytes */
    const char *device;
    const char *weights, *kv, *activations, *products;
    const struct product_observer *observer; /* no flag; NULL: none */
    int sharing;                             /* no flag; as in struct engine_options */
};

/* An entry of an options table, for commands that do without a tokenizer; `type` as below. */
#define COMMAND_CONTENT_TOKENS_OPTION(type)                                                       \
    {                                                                                             \
        "special-tokens-in-content", OPTION_CHOICE, offsetof(type, content_tokens), NULL, "text", \
            0, 0, "text|tokens",                                                                  \
            "what special tokens are where a chat's messages, names, tools or documents spell "   \
            "them, as <|im_end|>: text, so that nobody forges a turn, or tokens; the template's " \
            "own always are tokens"                                                               \
    }
#define COMMAND_PRESET_OPTION(type)                                                              \
    {                                                                                            \
        "preset", OPTION_TEXT, offsetof(type, model.preset), "NAME", NULL, 0, 0, OPTION_PRESETS, \
            "in place of a model: a configuration of the papers with random weights;\n      "    \
            "`regla info --presets` lists them"                                                  \
    }

/* The entry for a device, whose name lies at `offset`. */
#define COMMAND_DEVICE_OPTION(offset)                                                           \
    {                                                                                           \
        "device", OPTION_CHOICE, offset, NULL, "auto", 0, 0, "auto|cpu|cuda[:N]",               \
            "where to compute; auto: on the first GPU if there is one and this is built for it" \
    }

/* What the choices of --products are. */
#define COMMAND_PRODUCTS_HELP                                                      \
    "on a GPU: the engine's own, or cuBLASLt's for those of 128 tokens and more\n" \
    "      (" WEIGHTS_OF_CUBLASLT " weights); its results depend on what shares a step"

/* What the choices of --activations are. */
#define COMMAND_ACTIVATIONS_HELP                                                            \
    "what products round their inputs to: f32, 16bit (" WEIGHTS_OF_16BIT " weights;\n"      \
    "      f16 needs AMX), 8bit (" WEIGHTS_OF_8BIT " weights), or auto: by a fixed table\n" \
    "      for this processor and the weights' format; `regla info` prints what that is"

/* Entries of an options table, for any formats; `type` is the command's struct, whose member
 * `model` this is. */
#define COMMAND_MACHINE_OPTIONS(type)                                                            \
    COMMAND_DEVICE_OPTION(offsetof(type, model.device)),                                         \
        {"device-memory",                                                                        \
         OPTION_BYTES,                                                                           \
         offsetof(type, model.device_memory),                                                    \
         "bytes",                                                                                \
         "0",                                                                                    \
         0,                                                                                      \
         1e15,                                                                                   \
         NULL,                                                                                   \
         "memory for weights, workspace and states together; 0: no such limit"},                 \
        {"threads",                                                                              \
         OPTION_INTEGER,                                                                         \
         offsetof(type, model.threads),                                                          \
         "threads",                                                                              \
         "0",                                                                                    \
         0,                                                                                      \
         1024,                                                                                   \
         NULL,                                                                                   \
         "compute threads; 0: as many as this process may use"},                                 \
        {"products", OPTION_CHOICE,  offsetof(type, model.products),          NULL, "own", 0,    \
         0,          "own|cublaslt", "matrix products " COMMAND_PRODUCTS_HELP},                  \
    {                                                                                            \
        "state-memory", OPTION_BYTES, offsetof(type, model.state_memory), "bytes", "0", 0, 1e15, \
            NULL, "memory for the states of texts; 0: a share of what is free"                   \
    }

/* The same with the formats. activations: the default. Commands that say what a model is worth have
 * f32, which is the same on every machine. */
#define COMMAND_MODEL_OPTIONS(type, activations_default)                          \
    {"weights",                                                                   \
     OPTION_CHOICE,                                                               \
     offsetof(type, model.weights),                                               \
     "format",                                                                    \
     "auto",                                                                      \
     0,                                                                           \
     0,                                                                           \
     WEIGHT_FORMAT_CHOICES,                                                       \
     "format of the weights in memory; auto: as in the file"},                    \
        {"kv",                                                                    \
         OPTION_CHOICE,                                                           \
         offsetof(type, model.kv),                                                \
         "format",                                                                \
         "auto",                                                                  \
         0,                                                                       \
         0,                                                                       \
         "auto|f32|f16|bf16",                                                     \
         "format of the KV cache; auto: f32 when the weights are f32, else f16"}, \
        {"activations",                                                           \
         OPTION_CHOICE,                                                           \
         offsetof(type, model.activations),                                       \
         "format",                                                                \
         activations_default,                                                     \
         0,                                                                       \
         0,                                                                       \
         "auto|f32|16bit|8bit",                                                   \
         COMMAND_ACTIVATIONS_HELP},                                               \
        COMMAND_MACHINE_OPTIONS(type)

/* Returns 0 if exactly one of a directory (NULL: none) and a known --preset is given. Otherwise
 * prints what is wrong and returns 2, the exit status. */
int command_model_given(const char *command, const char *directory,
                        const struct command_model_options *options, const char *usage);

/* The engine's options from the flags; the other options are 0. */
struct engine_options command_engine_options(const struct command_model_options *options);

/* Loads the model of a directory or, when that is NULL, of the preset. Fails before it reads
 * anything when --device does not exist. */
int command_model_load(struct model **out, const char *directory,
                       const struct command_model_options *options, struct error *err);

/* Prints what was odd about the model's files. */
void command_model_warn(const struct model *model);

struct command_model {
    struct engine *engine;
    struct tokenizer *tokenizer; /* a preset's has no tokens */
};

/* Opens the engine, and the tokenizer beside the model. step_tokens: the most tokens of a step; 0:
 * the engine's default. all_logits: all of them may ask for logits. */
int command_model_open(struct command_model *model, const char *directory,
                       const struct command_model_options *options, int step_tokens,
                       bool all_logits, struct error *err);
void command_model_close(struct command_model *model);

/* Appends the tokens of a document, which the model's BOS begins, whether or not the tokenizer's
 * template has put it there. */
int command_encode_document(const struct command_model *model, const char *text, size_t length,
                            struct token_list *ids, struct error *err);

/* Opens only the tokenizer. `path`: a model's directory, or a tokenizer.json. NULL: a tokenizer
 * without tokens, in which all ids decode to nothing. */
int command_tokenizer_open(struct tokenizer **out, const char *path, struct error *err);

/* Prints warnings about the file of the model in this folder. */
void command_warn(const struct warnings *warnings, const char *folder);

/* Prints what was odd about its file. */
void command_tokenizer_warn(const struct tokenizer *tokenizer);

/* What a chat template knows of the model. */
struct chat_template_source command_template_source(const struct model *model,
                                                    const struct tokenizer *tokenizer);

/* Appends the ids in a text (with a NUL after it), separated by spaces, commas, brackets or
 * newlines. */
int command_parse_ids(const char *text, size_t length, struct token_list *ids, struct error *err);

/* Feeds count >= 1 tokens and draws the next one (draw NULL: none). Returns -1 also when none can
 * be drawn. */
int command_feed(struct engine *engine, struct state *state, const int32_t *tokens, size_t count,
                 struct draw *draw, struct error *err);

/* Reads all of standard input into *text (malloc'd, with a NUL after *length bytes). */
int command_read_stdin(char **text, size_t *length, struct error *err);

/* Prints "regla COMMAND: message" to stderr; returns 1, the exit status. */
int command_failed(const char *command, const struct error *err);
/* The same for arguments that are wrong whatever the files contain; returns 2. */
int command_misused(const char *command, const struct error *err);

#endif
