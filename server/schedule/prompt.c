/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/prompt.h"

#include "lib/text/detokenize.h"
#include "lib/text/unicode.h"
#include "server/grammars.h"
#include "server/schedule/bad_words.h"
#include "server/schedule/chat_job.h"

#include <stdlib.h>
#include <string.h>

int64_t prompt_encode_begin(struct service *service, size_t length, const char *param,
                            struct api_error *err)
{
    enum { BYTES_OF_BYTE = 20, SHORT_TEXT = 4096 };
    int64_t work = length > SHORT_TEXT ? (int64_t)length * BYTES_OF_BYTE : 0;
    if (admission_work(&service->admission, work))
        return work;
    if (!admission_possible(&service->admission, work)) {
        api_error_set(err, API_BODY_TOO_LARGE, param,
                      "%s: to tokenize %zu bytes takes %lld bytes, more than --max-body-memory",
                      param, length, (long long)work);
        return -1;
    }
    api_error_set(err, API_OUT_OF_MEMORY, param,
                  "to tokenize %zu bytes takes more memory than --max-body-memory has left",
                  length);
    return -1;
}

void prompt_encode_end(struct service *service, int64_t work)
{
    admission_work(&service->admission, -work);
}

/* Of the tokens of a whole text, the first ones that the session held [count] are not new. */
static void find_context(struct job_prompt *prompt, const struct token_list *held)
{
    while (prompt->context < held->count && prompt->context < prompt->count &&
           prompt->ids[prompt->context] == held->ids[prompt->context])
        prompt->context++;
}

/* Tokenizes a text behind what a session held. If it held anything, no special tokens are added. */
static int from_text(struct job_prompt *prompt, struct service *service,
                     const struct completion_request *request,
                     const struct completion_prompt *source, struct api_error *err)
{
    struct error error = ERROR_INIT;
    struct token_list *list = &prompt->tokens;
    int64_t work = prompt_encode_begin(service, source->length, "prompt", err);
    if (work < 0)
        return -1;
    int result = tokenizer_encode_input(
        service->tokenizer, source->text, source->length, source->input.items, source->input.count,
        request->add_special_tokens && !prompt->context, list, &error);
    prompt_encode_end(service, work);
    if (result)
        return api_error_from_engine(err, &error, "prompt");
    /* Where the tokenizer adds nothing to "", a text begins with the BOS token. */
    if (list->count == 0 && service->bos_token_id >= 0 &&
        token_list_push(list, service->bos_token_id, &error))
        return api_error_from_engine(err, &error, "prompt");
    if (list->count == 0)
        return api_error_set(err, API_INVALID_VALUE, "prompt",
                             "prompt: the text has no tokens and the model has no BOS token");
    for (size_t i = prompt->context; i < list->count; i++)
        if (list->ids[i] >= service->limits.vocab_size)
            return api_error_set(err, API_INVALID_VALUE, "prompt",
                                 "prompt: the text has token %d, the model knows ids under %d",
                                 (int)list->ids[i], (int)service->limits.vocab_size);
    prompt->ids = list->ids;
    prompt->count = list->count;
    return 0;
}

static int from_ids(struct job_prompt *prompt, const struct completion_prompt *source,
                    struct api_error *err)
{
    struct token_list *list = &prompt->tokens;
    prompt->ids = source->ids;
    prompt->count = source->num_ids;
    if (!prompt->context)
        return 0;
    size_t count = list->count + source->num_ids;
    int32_t *ids = realloc(list->ids, count * sizeof *ids);
    if (!ids)
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    memcpy(ids + list->count, source->ids, source->num_ids * sizeof *ids);
    prompt->ids = list->ids = ids;
    prompt->count = list->count = list->capacity = count;
    return 0;
}

/* Tokenizes a text that replaces what a session held. */
static int from_whole_text(struct job_prompt *prompt, struct service *service,
                           const struct completion_request *request,
                           const struct completion_prompt *source, struct api_error *err)
{
    struct token_list held = prompt->tokens;
    prompt->tokens = (struct token_list){0};
    prompt->context = 0;
    int result = from_text(prompt, service, request, source, err);
    if (result == 0)
        find_context(prompt, &held);
    prompt->replaces = prompt->context < held.count;
    token_list_clear(&held);
    return result;
}

static int tokenize(struct job_prompt *prompt, struct service *service,
                    const struct completion_request *request,
                    const struct completion_prompt *source, struct api_error *err)
{
    if (!source->text)
        return from_ids(prompt, source, err);
    return prompt->replaces ? from_whole_text(prompt, service, request, source, err)
                            : from_text(prompt, service, request, source, err);
}

/* Tokens of a text with its prompt; 0: without limit. */
static int64_t limit_of(const struct service *service)
{
    int64_t limit = service->limits.max_model_len, memory = service->memory_limit_tokens;
    return limit == 0 || (memory > 0 && memory < limit) ? memory : limit;
}

/* The tokens that a reply must have room for. */
static int64_t least_tokens(const struct completion_request *request)
{
    int64_t least = request->min_tokens > 1 ? request->min_tokens : 1;
    return request->max_tokens_fit ? least : request->max_tokens;
}

/* How many of the request's own tokens the text may keep; 0: all. */
static int64_t tokens_to_keep(const struct job_prompt *prompt, const struct service *service,
                              const struct completion_request *request)
{
    int64_t limit = limit_of(service);
    if (request->truncate_prompt_tokens >= 0)
        return request->truncate_prompt_tokens;
    int64_t room = limit - least_tokens(request) - (int64_t)prompt->context;
    return limit > 0 && room > 0 ? room : 0;
}

/* Keeps `keep` of the request's own tokens, the first or the last. Returns whether there were more.
 */
static bool truncate_own(struct job_prompt *prompt, int64_t keep, bool first)
{
    size_t own = job_prompt_own(prompt);
    if (keep <= 0 || own <= (size_t)keep)
        return false;
    size_t dropped = own - (size_t)keep;
    if (!first && prompt->context) /* then the ids are a list of our own */
        memmove(prompt->tokens.ids + prompt->context,
                prompt->tokens.ids + prompt->context + dropped, (size_t)keep * sizeof *prompt->ids);
    else if (!first)
        prompt->ids += dropped;
    prompt->count -= dropped;
    return true;
}

/* Whether the memory for states holds the texts of a prompt, which run together. */
static bool holds_texts(const struct service *service, const struct completion_request *request,
                        int64_t tokens)
{
    size_t budget = engine_info(service->engine)->state_memory_bytes;
    return engine_state_bytes(service->engine, tokens) <= budget / (size_t)request->best_of;
}

/* A request without max_tokens takes what has room, but at least what it must have. Memory is
 * reserved only as its texts grow (room.h). */
static void fit_max_tokens(const struct job_prompt *prompt, const struct service *service,
                           struct completion_request *request)
{
    int64_t limit = limit_of(service), least = least_tokens(request),
            count = (int64_t)prompt->count;
    int64_t room = limit - count, most = request->max_tokens;
    if (limit > 0 && room < most)
        most = room > least ? room : least;
    /* The most that all of its texts may have: from `least` to `most`. */
    int64_t low = least < most ? least : most;
    if (holds_texts(service, request, count + most))
        low = most;
    while (most - low > 1) {
        int64_t middle = low + (most - low) / 2;
        if (holds_texts(service, request, count + middle))
            low = middle;
        else
            most = middle;
    }
    request->max_tokens = low;
}

/* A chat whose turns may go must have room for a reply, too: for a fourth of all at most, unless it
 * must be longer. */
static int check_room(struct job_prompt *prompt, struct job *job, struct api_error *err)
{
    const struct completion_request *request = &job->asked.request;
    int64_t limit = limit_of(job->task.service), tokens = (int64_t)prompt->count;
    int64_t room = request->max_tokens < limit / 4 ? request->max_tokens : limit / 4;
    if (room < least_tokens(request))
        room = least_tokens(request);
    job->chat.tokens = 0;
    if (!request->chat_shortens || limit == 0 || tokens + room <= limit)
        return 0;
    job->chat.tokens = tokens;
    job->chat.most = limit - room;
    token_list_clear(&prompt->tokens);
    *prompt = (struct job_prompt){0};
    return api_error_context_length(err, 0, tokens, room, limit, "with room for the reply");
}

/* Refuses what the state budget can never hold. The texts of one prompt run together. */
static int check_memory(const struct job_prompt *prompt, const struct service *service,
                        const struct completion_request *request, struct api_error *err)
{
    int64_t tokens = (int64_t)prompt->count + request->max_tokens;
    if (service->memory_limit_tokens && tokens > service->memory_limit_tokens)
        return api_error_context_length(err, (int64_t)prompt->context,
                                        (int64_t)job_prompt_own(prompt), request->max_tokens,
                                        service->memory_limit_tokens, "the memory for states");
    size_t bytes = engine_state_bytes(service->engine, tokens);
    size_t budget = engine_info(service->engine)->state_memory_bytes;
    if (!holds_texts(service, request, tokens))
        return api_error_set(err, API_INVALID_VALUE,
                             request->best_of > request->n ? "best_of" : "n",
                             "%d texts of %lld tokens need %zu bytes each, the memory for states "
                             "has %zu",
                             request->best_of, (long long)tokens, bytes, budget);
    return 0;
}

/* Advances over one special token of a text that is echoed verbatim. If the tokenizer added it, it
 * has no place in the text; if it was typed, it has. */
static void skip_special(const struct job_prompt *prompt, const struct service *service, int32_t id,
                         size_t *bytes, int64_t *characters)
{
    const char *content = tokenizer_token_content(service->tokenizer, id);
    size_t length = content ? strlen(content) : 0;
    if (!length || length > prompt->text_length - *bytes ||
        memcmp(prompt->text + *bytes, content, length) != 0)
        return;
    *bytes += length;
    *characters += (int64_t)utf8_characters(content, length);
}

/* Where each token's text begins, in characters of the prompt's text. */
static int find_offsets(struct job_prompt *prompt, const struct service *service, bool verbatim,
                        bool skip_special_tokens, struct error *err)
{
    struct detokenizer *detokenizer = NULL;
    if (detokenizer_create(&detokenizer, service->tokenizer, verbatim || skip_special_tokens, err))
        return -1;
    int result = 0;
    int64_t characters = 0;
    size_t bytes = 0;
    for (size_t i = 0; i < job_prompt_own(prompt) && result == 0; i++) {
        int32_t id = prompt->ids[prompt->context + i];
        const char *text;
        size_t length;
        result = detokenizer_push(detokenizer, id, &text, &length, err);
        int64_t offset = characters + (int64_t)detokenizer_lead(detokenizer);
        prompt->logprobs[i].text_offset = offset < prompt->characters ? offset : prompt->characters;
        if (result == 0) {
            bytes += length;
            characters += (int64_t)utf8_characters(text, length);
        }
        if (bytes > prompt->text_length)
            bytes = prompt->text_length;
        if (verbatim && tokenizer_is_special(service->tokenizer, id))
            skip_special(prompt, service, id, &bytes, &characters);
    }
    detokenizer_free(detokenizer);
    return result;
}

static int prepare_echo(struct job *job, struct job_prompt *prompt,
                        const struct completion_prompt *source, bool verbatim, struct error *err)
{
    const struct service *service = job->task.service;
    const struct completion_request *request = &job->asked.request;
    size_t own = job_prompt_own(prompt);
    if (verbatim) {
        prompt->text = source->text;
        prompt->text_length = source->length;
    } else {
        if (tokenizer_decode(service->tokenizer, prompt->ids + prompt->context, own,
                             request->skip_special_tokens, &prompt->text_owned,
                             &prompt->text_length, err))
            return -1;
        prompt->text = prompt->text_owned;
        if (job_reserve(job, prompt->text_length, err))
            return -1;
    }
    prompt->characters = (int64_t)utf8_characters(prompt->text, prompt->text_length);
    return 0;
}

/* Where the prompt's own log-probabilities go, if they are asked for. */
static int prepare_logprobs(struct job *job, struct job_prompt *prompt, bool verbatim,
                            struct error *err)
{
    const struct completion_request *request = &job->asked.request;
    size_t own = job_prompt_own(prompt);
    int echoed = request->echo ? request->logprobs : -1;
    int most = echoed > request->prompt_logprobs ? echoed : request->prompt_logprobs;
    if (most < 0)
        return 0;
    size_t tops = own * (size_t)most;
    prompt->num_top = most;
    if (job_reserve(job, own * sizeof *prompt->logprobs + tops * sizeof *prompt->tops, err))
        return -1;
    prompt->logprobs = calloc(own + 1, sizeof *prompt->logprobs);
    prompt->tops = calloc(tops + 1, sizeof *prompt->tops);
    if (!prompt->logprobs || !prompt->tops)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the prompt's logprobs");
    for (size_t i = 0; i < own; i++)
        prompt->logprobs[i].id = prompt->ids[prompt->context + i];
    return request->echo ? find_offsets(prompt, job->task.service, verbatim,
                                        request->skip_special_tokens, err)
                         : 0;
}

/* Prepares the prompt of that index. It borrows from the request. */
static int prepare(struct job *job, size_t index, struct api_error *err)
{
    struct job_prompt *prompt = &job->prepared.prompts[index];
    struct service *service = job->task.service;
    const struct completion_request *request = &job->asked.request;
    const struct completion_prompt *source = &request->prompts[index];
    struct error error = ERROR_INIT;
    bool verbatim = source->text != NULL;
    if (tokenize(prompt, service, request, source, err) || check_room(prompt, job, err))
        return -1;
    size_t chat = index == 0 ? request->chat.length : 0;
    if (job_reserve(job, prompt->count * sizeof *prompt->ids + source->length + chat, &error))
        return api_error_from_engine(err, &error, "prompt");
    if (truncate_own(prompt, tokens_to_keep(prompt, service, request), request->truncate_end))
        verbatim = false;
    if (request->max_tokens_fit)
        fit_max_tokens(prompt, service, &job->asked.request);
    if (completion_check_length(request, (int64_t)prompt->context, (int64_t)job_prompt_own(prompt),
                                &service->limits, err) ||
        check_memory(prompt, service, request, err))
        return -1;
    if ((request->echo && prepare_echo(job, prompt, source, verbatim, &error)) ||
        prepare_logprobs(job, prompt, verbatim, &error))
        return api_error_from_engine(err, &error, "prompt");
    return 0;
}

/* The tokens that end a text. */
static int prepare_ends(struct job *job, struct api_error *err)
{
    struct job_prepared *prepared = &job->prepared;
    const struct completion_request *request = &job->asked.request;
    const struct service *service = job->task.service;
    size_t num_eos = request->ignore_eos ? 0 : service->num_eos;
    prepared->ends = malloc((num_eos + request->num_stop_token_ids + 1) * sizeof *prepared->ends);
    if (!prepared->ends)
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    prepared->num_eos = num_eos;
    for (size_t i = 0; i < num_eos; i++)
        prepared->ends[prepared->num_ends++] = service->eos_ids[i];
    for (size_t i = 0; i < request->num_stop_token_ids; i++)
        if (!token_list_contains(service->eos_ids, num_eos, request->stop_token_ids[i]))
            prepared->ends[prepared->num_ends++] = request->stop_token_ids[i];
    return 0;
}

static int prepare_stops(struct job *job, struct api_error *err)
{
    struct error error = ERROR_INIT;
    struct job_prepared *prepared = &job->prepared;
    const struct completion_request *request = &job->asked.request;
    if (request->num_stops == 0)
        return 0;
    struct stop_string *strings = malloc(request->num_stops * sizeof *strings);
    if (!strings)
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    size_t length = 0;
    for (size_t i = 0; i < request->num_stops; i++) {
        strings[i] = (struct stop_string){request->stops[i].text, request->stops[i].length};
        length += strings[i].length;
    }
    int result = 0;
    if (job_reserve(job, stop_set_bytes(length), &error) ||
        stop_set_create(&prepared->stops, strings, request->num_stops, &error))
        result = api_error_from_engine(err, &error, "stop");
    free(strings);
    return result;
}

/* Whether a token may come at first that is not marked. */
static int check_left(const struct job *job, const bool *marked, struct api_error *err)
{
    const struct completion_request *request = &job->asked.request;
    const struct sampling *sampling = &request->sampling;
    bool left = false;
    for (size_t i = 0; i < sampling->num_allowed && !left; i++)
        left = !marked[sampling->allowed[i]];
    for (int32_t i = 0; i < job->task.service->limits.vocab_size && !left; i++)
        left = sampling->num_allowed == 0 && !marked[i];
    if (left)
        return 0;
    if (sampling->num_allowed == 0 && job->prepared.num_always == 0)
        return api_error_set(err, API_INVALID_VALUE, "stop_token_ids",
                             "stop_token_ids: no token is left that may come before min_tokens");
    const char *name = sampling->num_allowed > 0 ? "allowed_token_ids" : "bad_words";
    return api_error_set(err, API_INVALID_VALUE, name, "%s: no token is left that may come", name);
}

/* Lists what ends a text and then the singles, each token once. */
static int list_bans(struct job *job, const struct token_list *singles, struct api_error *err)
{
    struct job_prepared *prepared = &job->prepared;
    int32_t vocab_size = job->task.service->limits.vocab_size;
    bool early = job->asked.request.min_tokens > 0;
    bool *marked = calloc((size_t)vocab_size, sizeof *marked);
    size_t most = prepared->num_ends + singles->count;
    struct error full = ERROR_INIT;
    if (job_reserve(job, (most + 1) * sizeof *prepared->bans, &full) == 0)
        prepared->bans = malloc((most + 1) * sizeof *prepared->bans);
    if (!marked || !prepared->bans) {
        free(marked);
        return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    }
    for (size_t i = 0; i < singles->count; i++)
        marked[singles->ids[i]] = true;
    for (size_t i = 0; i < prepared->num_ends && early; i++) {
        int32_t id = prepared->ends[i];
        if (marked[id])
            continue;
        marked[id] = true;
        prepared->bans[prepared->num_bans++] = id;
    }
    for (size_t i = 0; i < singles->count; i++)
        prepared->bans[prepared->num_bans++] = singles->ids[i];
    prepared->num_always = singles->count;
    int result = check_left(job, marked, err);
    free(marked);
    return result;
}

/* Tokenizes bad_words, of which the longest takes the most memory. */
static int prepare_words(struct job *job, struct token_list *singles, struct api_error *err)
{
    const struct completion_request *request = &job->asked.request;
    struct service *service = job->task.service;
    size_t longest = 0;
    for (size_t i = 0; i < request->num_bad_words; i++)
        if (request->bad_words[i].length > longest)
            longest = request->bad_words[i].length;
    int64_t work = prompt_encode_begin(service, longest + 1, "bad_words", err);
    if (work < 0)
        return -1;
    int result = bad_words_create(&job->prepared.words, singles, service->tokenizer,
                                  request->bad_words, request->num_bad_words, longest, err);
    prompt_encode_end(service, work);
    struct error full = ERROR_INIT;
    const struct bad_words *words = job->prepared.words;
    if (result == 0 && words && job_reserve(job, bad_words_kept(words), &full))
        result = api_error_from_engine(err, &full, "bad_words");
    return result;
}

/* The tokens that may not come: those that end a text before min_tokens, and bad words. */
static int prepare_bans(struct job *job, struct api_error *err)
{
    const struct completion_request *request = &job->asked.request;
    struct token_list singles = {0};
    if (request->num_bad_words == 0 && request->min_tokens == 0)
        return 0;
    int result = 0;
    if (request->num_bad_words > 0)
        result = prepare_words(job, &singles, err);
    if (result == 0)
        result = list_bans(job, &singles, err);
    token_list_clear(&singles);
    return result;
}

static void warn_of_annotations(struct job *job)
{
    unsigned annotations = grammar_annotations(grammars_entry_grammar(job->prepared.grammar));
    struct strbuf names = {0};
    if (!annotations)
        return;
    for (int i = 0; i < NUM_ANNOTATIONS; i++)
        if (annotations >> i & 1)
            strbuf_printf(&names, "%s%s", names.length ? ", " : "",
                          grammar_annotation_name((enum grammar_annotation)i));
    reply_warnings_add(&job->task.warnings, WARNING_SCHEMA,
                       "%s: keywords of its schema that are not enforced: %.*s",
                       job->asked.request.constraint.name, (int)names.length,
                       names.data ? names.data : "");
    strbuf_clear(&names);
}

/* Compiles what constrains the texts. */
static int prepare_grammar(struct job *job, struct api_error *err)
{
    struct completion_request *request = &job->asked.request;
    request->sampling.masked = request->constraint.param || request->thinking_budget >= 0;
    if (!request->constraint.param)
        return 0;
    if (grammars_get(job->task.service->grammars, &request->constraint, &job->prepared.grammar,
                     err))
        return -1;
    warn_of_annotations(job);
    return 0;
}

size_t prompt_bytes(const struct job *job)
{
    size_t bytes = 0;
    for (size_t i = 0; i < job->asked.request.num_prompts; i++) {
        const struct completion_prompt *prompt = &job->asked.request.prompts[i];
        bytes += prompt->text ? prompt->length : prompt->num_ids;
    }
    return bytes;
}

int prompt_prepare(struct job *job, struct api_error *err)
{
    if (chat_job_find_own(job, err))
        return -1;
    for (size_t i = 0; i < job->asked.request.num_prompts; i++) {
        if (ticket_cancelled(&job->task.ticket))
            return 0;
        if (prepare(job, i, err))
            return -1;
        job->prepared.prompt_tokens += (int64_t)job->prepared.prompts[i].count;
    }
    return prepare_ends(job, err) || prepare_stops(job, err) || prepare_bans(job, err) ||
                   prepare_grammar(job, err)
               ? -1
               : 0;
}
