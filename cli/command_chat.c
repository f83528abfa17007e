/* SPDX-License-Identifier: Apache-2.0 */
/* regla chat: a conversation on the terminal, whose history is kept as a state. */
#include "cli/command.h"

#include "cli/chat_text.h"
#include "cli/command_model.h"
#include "cli/generation.h"
#include "engine/model/model.h"
#include "lib/base/clock.h"
#include "lib/jinja/chat_template.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chat_options {
    struct command_model_options model;
    struct generation_options generation;
    const char *system, *chat_template, *kwargs, *content_tokens;
    bool quiet;
};

#define AT(field) offsetof(struct chat_options, field)

static const struct option items[] = {
    {"system", OPTION_TEXT, AT(system), "TEXT", NULL, 0, 0, NULL, "the system prompt"},
    {"chat-template", OPTION_TEXT, AT(chat_template), "FILE", NULL, 0, 0, NULL,
     "the chat template, in Jinja, instead of the model's own"},
    {"chat-template-kwargs", OPTION_TEXT, AT(kwargs), "JSON", NULL, 0, 0, NULL,
     "more variables of the template, e.g. '{\"enable_thinking\": false}'"},
    COMMAND_CONTENT_TOKENS_OPTION(struct chat_options),
    GENERATION_OPTIONS(struct chat_options, "2048"),
    {"quiet", OPTION_FLAG, AT(quiet), NULL, "false", 0, 0, NULL,
     "print no figures to standard error after each reply"},
    COMMAND_MODEL_OPTIONS(struct chat_options, "auto"),
};

static const char HELP[] =
    "A line is a message. /reset forgets the conversation, but not the system prompt; /help says "
    "this.\nCtrl-C ends a reply; Ctrl-D, /exit or /quit ends the chat.\n";
static const char HINT[] = "Ctrl-D, /exit or /quit ends the chat; /help helps.\n";

const struct options command_chat_options = {
    .usage = "regla chat MODEL [--system TEXT] [options]",
    .summary =
        "Chats with MODEL, a directory or a GGUF file: a line is a message. /reset forgets "
        "the\nconversation, /help helps. Ctrl-C ends a reply; Ctrl-D, /exit or /quit the chat. "
        "Each turn\ncomputes only what is new, as far as the template leaves the history as "
        "it was.",
    .items = items,
    .count = sizeof items / sizeof *items,
    .operands = OPERANDS_FILES,
};

/* A conversation under way. */
struct conversation {
    const struct chat_options *options;
    struct command_model model;
    struct chat_template template;
    struct generation generation;
    json_t *fields;            /* of a request: messages, and what belongs to them */
    struct chat_specials said; /* special tokens in those that are replies */
    bool over;                 /* a line has ended the conversation */
    int32_t turn;
    /* What the model has read. */
    char *text; /* [text_length]: all of it, with the last reply */
    size_t text_length;
    struct token_list tokens;     /* of the text */
    struct state *state, *before; /* of the first of these tokens; before: shortly before the last
                                     reply, where templates begin to change what it was */
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

static int out_of_memory(struct error *err)
{
    return error_set(err, ERROR_NO_MEMORY, "out of memory");
}

/* ---- messages ---- */

static json_t *messages_of(const struct conversation *chat)
{
    return json_object_get(chat->fields, "messages");
}

static int add_message(struct conversation *chat, const char *role, const char *text, size_t length,
                       struct error *err)
{
    json_t *content = json_stringn(text, length);
    if (!content)
        return error_set(err, ERROR_INVALID, "the message is not UTF-8");
    return json_array_append_new(messages_of(chat),
                                 json_pack("{s:s, s:o}", "role", role, "content", content))
               ? out_of_memory(err)
               : 0;
}

/* Nothing has been read: the next turn reads all. */
static void forget(struct conversation *chat)
{
    state_free(chat->state);
    state_free(chat->before);
    chat->state = chat->before = NULL;
    token_list_clear(&chat->tokens);
    free(chat->text);
    chat->text = NULL;
    chat->text_length = 0;
}

/* Begins a conversation: nothing has been said. */
static int reset(struct conversation *chat, struct error *err)
{
    const char *system = chat->options->system;
    forget(chat);
    chat_specials_clear(&chat->said);
    if (json_object_set_new(chat->fields, "messages", json_array()) != 0)
        return out_of_memory(err);
    return system ? add_message(chat, "system", system, strlen(system), err) : 0;
}

/* ---- what is new ---- */

/* The tokens of the rendered text, of which `input` came from the messages. What the model has read
 * keeps its tokens where the text goes on; else all are made anew. */
static int tokenize(struct conversation *chat, const char *text, size_t length,
                    struct span_list *input, struct token_list *tokens, struct error *err)
{
    size_t from = chat->text_length;
    if (from > length || (from > 0 && memcmp(text, chat->text, from) != 0))
        from = 0;
    for (size_t i = 0; from > 0 && i < chat->tokens.count; i++)
        if (token_list_push(tokens, chat->tokens.ids[i], err) != 0)
            return -1;
    span_list_cut(input, from, length);
    return tokenizer_encode_input(chat->model.tokenizer, text + from, length - from, input->items,
                                  input->count, false, tokens, err);
}

static int64_t position_of(const struct state *state)
{
    return state ? state_position(state) : 0;
}

/* The state that has read the most of these tokens, and no others; NULL: none has. */
static const struct state *deepest(const struct conversation *chat, const struct token_list *tokens)
{
    size_t common = 0;
    while (common < tokens->count && common < chat->tokens.count &&
           tokens->ids[common] == chat->tokens.ids[common])
        common++;
    if (common == tokens->count) /* the last one is computed: its logits are wanted */
        common--;
    if (position_of(chat->state) <= (int64_t)common)
        return chat->state;
    return position_of(chat->before) <= (int64_t)common ? chat->before : NULL;
}

/* Puts states in place that have read these tokens, with room for the reply. *read: so many had
 * been read before. */
static int read_tokens(struct conversation *chat, const struct token_list *tokens, size_t *read,
                       struct error *err)
{
    /* Tokens that templates open a reply with, at most. */
    enum { OPENING = 16 };
    const struct state *from = deepest(chat, tokens);
    struct engine *engine = chat->model.engine;
    struct state *state = NULL, *before = NULL;
    int64_t room = (int64_t)tokens->count + chat->generation.limit;
    size_t at = (size_t)position_of(from), split = tokens->count;
    split = split > OPENING && split - OPENING > at ? split - OPENING : at;
    int result =
        from ? state_clone(&state, from, room, err) : state_create(&state, engine, room, err);
    *read = at;
    if (result == 0 && split > at)
        result = command_feed(engine, state, tokens->ids + at, split - at, NULL, err);
    if (result == 0)
        result = state_clone(&before, state, (int64_t)split, err);
    if (result == 0)
        result = command_feed(engine, state, tokens->ids + split, tokens->count - split,
                              &chat->generation.draw, err);
    if (result != 0) {
        state_free(state);
        state_free(before);
        return -1;
    }
    state_free(chat->state);
    state_free(chat->before);
    chat->state = state;
    chat->before = before;
    return 0;
}

/* ---- turns ---- */

/* The last message has special tokens there. */
static int note_special(struct conversation *chat, const struct span_list *special,
                        struct error *err)
{
    struct chat_specials *said = &chat->said;
    if (array_grow((void **)&said->items, &said->capacity, said->count + special->count,
                   sizeof *said->items, err))
        return -1;
    for (size_t i = 0; i < special->count; i++)
        said->items[said->count++] =
            (struct chat_special){json_array_size(messages_of(chat)) - 1, special->items[i]};
    return 0;
}

/* The reply is said: it becomes a message, and the text and tokens that go on. Takes the text and
 * the prompt's tokens over. */
static int keep_turn(struct conversation *chat, char *text, size_t length,
                     struct token_list *tokens, struct error *err)
{
    const struct token_list *taken = &chat->generation.taken;
    char *reply = NULL, *all = NULL;
    size_t reply_length;
    struct span_list special = {0};
    int result = detokenizer_behind(chat->model.tokenizer, tokens->ids, tokens->count, taken->ids,
                                    taken->count, &reply, &reply_length, &special, err);
    if (result == 0)
        result = add_message(chat, "assistant", reply, reply_length, err);
    if (result == 0)
        result = note_special(chat, &special, err);
    for (size_t i = 0; i < taken->count && result == 0; i++)
        result = token_list_push(tokens, taken->ids[i], err);
    if (result == 0 && !(all = realloc(text, length + reply_length + 1)))
        result = out_of_memory(err);
    if (result == 0) {
        memcpy(all + length, reply, reply_length + 1);
        free(chat->text);
        token_list_clear(&chat->tokens);
        chat->text = all;
        chat->text_length = length + reply_length;
        chat->tokens = *tokens;
        *tokens = (struct token_list){0};
    } else {
        free(text);
    }
    span_list_clear(&special);
    free(reply);
    return result;
}

static int answer(struct conversation *chat, const struct token_list *tokens, struct error *err)
{
    struct generation *generation = &chat->generation;
    size_t read;
    double start = clock_seconds();
    if (generation_begin(generation, tokens->ids, tokens->count, chat->turn++, err) != 0 ||
        read_tokens(chat, tokens, &read, err) != 0)
        return -1;
    double prefilled = clock_seconds();
    if (generation_run(generation, chat->state, err) != 0 || generation_write("\n", 1, err) != 0)
        return -1;
    double seconds = clock_seconds() - prefilled;
    if (!chat->options->quiet)
        fprintf(stderr,
                "%zu tokens, %zu of them new, in %.2f s, %" PRId64 " tokens in %.2f s (%.1f a "
                "second), ended by %s, seed %" PRId64 "\n",
                tokens->count, tokens->count - read, prefilled - start, generation->generated,
                seconds, seconds > 0 ? (double)generation->generated / seconds : 0,
                generation->reason, generation->seed);
    return 0;
}

static int check_room(const struct conversation *chat, size_t count, struct error *err)
{
    int64_t positions = engine_info(chat->model.engine)->max_positions;
    if (positions == 0 || (int64_t)count <= positions)
        return 0;
    return error_set(err, ERROR_INVALID,
                     "the conversation has %zu tokens, the model %" PRId64
                     " positions: /reset begins anew",
                     count, positions);
}

static int say(struct conversation *chat, const char *line, size_t length, struct error *err)
{
    struct token_list tokens = {0};
    struct completion_prompt prompt = {0};
    size_t said = json_array_size(messages_of(chat));
    interrupted = 0;
    int result = add_message(chat, "user", line, length, err);
    if (result == 0)
        result = chat_text_render(&prompt, &chat->template, chat->fields,
                                  strcmp(chat->options->content_tokens, "tokens") == 0, &chat->said,
                                  err);
    if (result == 0)
        result = tokenize(chat, prompt.text, prompt.length, &prompt.input, &tokens, err);
    if (result == 0 && tokens.count == 0)
        result = error_set(err, ERROR_INVALID, "the template makes an empty text of the messages");
    if (result == 0)
        result = check_room(chat, tokens.count, err);
    if (result == 0)
        result = answer(chat, &tokens, err);
    if (result == 0)
        result = keep_turn(chat, prompt.text, prompt.length, &tokens, err);
    else
        free(prompt.text);
    span_list_clear(&prompt.input);
    token_list_clear(&tokens);
    if (result == 0)
        return 0;
    /* A message without an answer was not said. */
    forget(chat);
    while (json_array_size(messages_of(chat)) > said)
        json_array_remove(messages_of(chat), said);
    while (chat->said.count > 0 && chat->said.items[chat->said.count - 1].message >= said)
        chat->said.count--;
    return -1;
}

/* A line, without its end. */
static int take_line(struct conversation *chat, const char *line, size_t length, struct error *err)
{
    if (length == 0)
        return 0;
    if (line[0] != '/')
        return say(chat, line, length, err);
    if (strcmp(line, "/reset") == 0)
        return reset(chat, err);
    if (strcmp(line, "/help") == 0)
        return generation_write(HELP, sizeof HELP - 1, err);
    chat->over = strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0;
    if (chat->over)
        return 0;
    return error_set(err, ERROR_INVALID, "expected /reset, /help, /exit or /quit, got %.40s", line);
}

/* Reads lines until the end of standard input. On a terminal an error ends the turn, else the chat.
 */
static int converse(struct conversation *chat, struct error *err)
{
    bool terminal = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t capacity = 0;
    int result = terminal ? generation_write(HINT, sizeof HINT - 1, err) : 0;
    while (result == 0 && !chat->over) {
        if (terminal && generation_write("> ", 2, err) != 0)
            break;
        ssize_t length = getline(&line, &capacity, stdin);
        if (length < 0)
            break;
        while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == '\r'))
            length--;
        line[length] = 0;
        result = take_line(chat, line, (size_t)length, err);
        if (result != 0 && terminal) {
            command_failed("chat", err);
            error_clear(err);
            result = 0;
        }
    }
    if (terminal)
        printf("\n");
    free(line);
    if (result == 0 && ferror(stdin))
        return error_set(err, ERROR_IO, "standard input: cannot read: %s", strerror(errno));
    return err->code == ERROR_NONE ? result : -1;
}

static int take_kwargs(struct conversation *chat, struct error *err)
{
    json_error_t wrong;
    if (!(chat->fields = json_object()))
        return out_of_memory(err);
    if (!chat->options->kwargs)
        return 0;
    json_t *kwargs = json_loads(chat->options->kwargs, JSON_REJECT_DUPLICATES, &wrong);
    if (!json_is_object(kwargs)) {
        json_decref(kwargs);
        return error_set(err, ERROR_INVALID, "--chat-template-kwargs: expected a JSON object: %s",
                         kwargs ? "it is another value" : wrong.text);
    }
    return json_object_set_new(chat->fields, "chat_template_kwargs", kwargs) ? out_of_memory(err)
                                                                             : 0;
}

static int open_chat(struct conversation *chat, const char *directory, struct error *err)
{
    const struct chat_options *options = chat->options;
    const struct sigaction interrupt = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    if (take_kwargs(chat, err) != 0 ||
        command_model_open(&chat->model, directory, &options->model, 0, false, err) != 0)
        return -1;
    const struct chat_template_source source =
        command_template_source(engine_model(chat->model.engine), chat->model.tokenizer);
    if (chat_template_open(&chat->template, directory, options->chat_template, &source, err) != 0)
        return -1;
    if (!chat->template.template)
        return error_set(err, ERROR_INVALID, "%s", chat->template.why);
    chat->generation = (struct generation){.options = &options->generation,
                                           .path = directory,
                                           .engine = chat->model.engine,
                                           .tokenizer = chat->model.tokenizer,
                                           .interrupted = &interrupted};
    if (isatty(STDIN_FILENO))
        sigaction(SIGINT, &interrupt, NULL);
    return generation_open(&chat->generation, err) != 0 || reset(chat, err) != 0 ? -1 : 0;
}

static void clear(struct conversation *chat)
{
    forget(chat);
    chat_specials_clear(&chat->said);
    generation_clear(&chat->generation);
    json_decref(chat->fields);
    chat_template_clear(&chat->template);
    command_model_close(&chat->model);
}

int command_chat(int argc, char **argv)
{
    struct chat_options options = {0};
    struct conversation chat = {.options = &options};
    const char *directory = NULL;
    struct option_arguments arguments = {.items = &directory, .capacity = 1};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&command_chat_options, &options, argc, argv, &arguments, &status) == 0) {
        if (!directory) {
            fprintf(stderr, "regla chat: expected a model's directory or a GGUF file; usage: %s\n",
                    command_chat_options.usage);
            status = 2;
        } else if (open_chat(&chat, directory, &err) != 0 || converse(&chat, &err) != 0) {
            status = command_failed(argv[0], &err);
        }
    }
    clear(&chat);
    options_clear(&command_chat_options, &options);
    return status;
}
