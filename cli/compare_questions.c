/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/compare.h"

#include "cli/chat_text.h"
#include "engine/model/model.h"
#include "engine/ops/sampler.h"

#include <stdlib.h>
#include <unistd.h>

/* Questions that are answered beside each other: no answer depends on it. */
enum { AT_ONCE = 16 };

/* A question under way. */
struct asked {
    struct token_list taken; /* of the answer, without an EOS */
    struct state *state;
    struct sampler *sampler;
    struct draw draw; /* the next token */
    bool over;
};

/* All questions, asked to one engine. */
struct asking {
    struct comparison *comparison;
    struct engine *engine;
    struct asked asked[AT_ONCE]; /* [count], from question number `first` on */
    size_t first, count;
};

static void drop(struct asked *asked)
{
    state_free(asked->state);
    sampler_free(asked->sampler);
    token_list_clear(&asked->taken);
    *asked = (struct asked){0};
}

/* The tokens of a chat with one message. */
static int prompt_of(const struct asking *asking, size_t number, struct token_list *tokens,
                     struct error *err)
{
    const struct comparison *c = asking->comparison;
    struct completion_prompt prompt = {0};
    size_t length;
    const char *question = questions_text(&c->questions, number, &length);
    json_t *fields =
        json_pack("{s:[{s:s, s:s%}]}", "messages", "role", "user", "content", question, length);
    if (!fields)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int result = chat_text_render(&prompt, &c->template, fields, false, NULL, err);
    if (result == 0)
        result = tokenizer_encode_input(c->models[0].tokenizer, prompt.text, prompt.length,
                                        prompt.input.items, prompt.input.count, false, tokens, err);
    if (result == 0 && tokens->count == 0)
        result = error_set(err, ERROR_INVALID, "the template makes an empty text of it");
    free(prompt.text);
    span_list_clear(&prompt.input);
    json_decref(fields);
    return result;
}

/* A token was drawn. */
static void take(struct asked *asked, struct error *err)
{
    asked->over = draw_ends(&asked->draw) ||
                  token_list_push(&asked->taken, asked->draw.id, err) != 0 ||
                  asked->taken.count == COMPARE_ANSWER_TOKENS;
}

static int read_prompt(struct asking *asking, struct asked *asked, const struct token_list *tokens,
                       struct error *err)
{
    static const struct sampling greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    const struct model *model = engine_model(asking->engine);
    if (state_create(&asked->state, asking->engine, (int64_t)tokens->count + COMPARE_ANSWER_TOKENS,
                     err) != 0 ||
        sampler_create(&asked->sampler, &greedy, engine_info(asking->engine)->vocab_size, NULL, 0,
                       err) != 0)
        return -1;
    asked->draw = (struct draw){
        .sampler = asked->sampler, .ends = model->eos.ids, .num_ends = model->eos.count};
    if (command_feed(asking->engine, asked->state, tokens->ids, tokens->count, &asked->draw, err) !=
        0)
        return -1;
    take(asked, err);
    return err->code == ERROR_NONE ? 0 : -1;
}

/* Reads prompts until there are enough, or memory must wait for those under way. */
static int begin(struct asking *asking, struct error *err)
{
    const size_t all = questions_count(&asking->comparison->questions);
    asking->count = 0;
    while (asking->count < AT_ONCE && asking->first + asking->count < all) {
        struct asked *asked = &asking->asked[asking->count];
        struct token_list tokens = {0};
        struct error problem = ERROR_INIT;
        int result = prompt_of(asking, asking->first + asking->count, &tokens, &problem);
        if (result == 0)
            result = read_prompt(asking, asked, &tokens, &problem);
        token_list_clear(&tokens);
        if (result != 0) {
            drop(asked);
            if (problem.code == ERROR_NO_MEMORY && asking->count > 0)
                return 0;
            *err = problem;
            return error_prefix(err, "question %zu", asking->first + asking->count + 1);
        }
        asking->count++;
    }
    return 0;
}

/* Draws until all answers under way are over. */
static int answer(struct asking *asking, struct error *err)
{
    for (;;) {
        struct span spans[AT_ONCE];
        struct asked *of[AT_ONCE];
        int32_t ids[AT_ONCE];
        int count = 0;
        for (size_t i = 0; i < asking->count; i++) {
            struct asked *asked = &asking->asked[i];
            if (asked->over)
                continue;
            ids[count] = asked->draw.id;
            of[count] = asked;
            spans[count] = (struct span){.state = asked->state,
                                         .tokens = &ids[count],
                                         .num_tokens = 1,
                                         .draw = &asked->draw};
            count++;
        }
        if (count == 0)
            return 0;
        if (engine_step(asking->engine, spans, count, err) != 0)
            return -1;
        for (int i = 0; i < count; i++) {
            if (draw_check(&of[i]->draw, err) != 0)
                return -1;
            take(of[i], err);
        }
        if (err->code != ERROR_NONE)
            return -1;
    }
}

/* Keeps the answers, with what they are worth, and frees the rest. */
static int judge(struct asking *asking, int which, struct error *err)
{
    struct comparison *c = asking->comparison;
    for (size_t i = 0; i < asking->count; i++) {
        struct asked *asked = &asking->asked[i];
        struct compare_answer *kept = &c->answers[which][asking->first + i];
        if (tokenizer_decode(c->models[0].tokenizer, asked->taken.ids, asked->taken.count, true,
                             &kept->text, &kept->length, err) != 0 ||
            questions_judge(&c->questions, asking->first + i, kept->text, kept->length,
                            &kept->right, err) != 0)
            return -1;
        c->right[which] += kept->right;
        drop(asked);
    }
    return 0;
}

static void progress(const struct asking *asking, int which, bool over)
{
    const struct comparison *c = asking->comparison;
    if (c->options->scoring.quiet || !isatty(STDERR_FILENO))
        return;
    if (over)
        fprintf(stderr, "\r\033[K");
    else
        fprintf(stderr, "\rasking %c: %zu of %zu questions", 'A' + which,
                asking->first + asking->count, questions_count(&c->questions));
}

/* Asks one of the two. */
static int ask(struct asking *asking, int which, struct error *err)
{
    const size_t all = questions_count(&asking->comparison->questions);
    asking->engine = asking->comparison->models[which].engine;
    for (asking->first = 0; asking->first < all; asking->first += asking->count) {
        if (begin(asking, err) != 0)
            return -1;
        progress(asking, which, false);
        if (answer(asking, err) != 0 || judge(asking, which, err) != 0)
            return -1;
    }
    progress(asking, which, true);
    return 0;
}

int compare_open_template(struct comparison *c, struct error *err)
{
    const struct chat_template_source source =
        command_template_source(engine_model(c->models[0].engine), c->models[0].tokenizer);
    if (chat_template_open(&c->template, c->directory, c->options->chat_template, &source, err) !=
        0)
        return -1;
    if (c->template.template)
        return 0;
    return error_set(err, ERROR_INVALID, "questions: expected a chat template, got none: %s",
                     c->template.why);
}

int compare_questions(struct comparison *c, struct error *err)
{
    struct asking asking = {.comparison = c};
    int result = 0;
    for (int i = 0; i < COMPARED && result == 0; i++) {
        c->answers[i] = calloc(questions_count(&c->questions), sizeof *c->answers[i]);
        result = c->answers[i] ? ask(&asking, i, err)
                               : error_set(err, ERROR_NO_MEMORY, "no memory for answers");
    }
    for (size_t i = 0; i < AT_ONCE; i++)
        drop(&asking.asked[i]);
    return result;
}
