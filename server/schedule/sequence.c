/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/sequence.h"

#include "api/chat_rules.h"
#include "lib/base/clock.h"
#include "lib/text/unicode.h"
#include "server/grammars.h"

#include <stdlib.h>
#include <string.h>

static int no_memory(struct error *err)
{
    return error_set(err, ERROR_NO_MEMORY, "out of memory for a text");
}

int sequence_open(struct sequence **out, struct job *job, size_t index, struct error *err)
{
    struct sequence *sequence = calloc(1, sizeof *sequence);
    if (!sequence)
        return no_memory(err);
    const struct completion_request *request = &job->asked.request;
    size_t prompt = index / (size_t)request->best_of;
    sequence->job = job;
    sequence->prompt = &job->prepared.prompts[prompt];
    sequence->choice = &job->run.choices[index];
    sequence->index = (int)index;
    sequence->characters = sequence->prompt->characters;
    sequence->opened = clock_seconds();
    struct sampling sampling = request->sampling;
    sampling.choice = (int32_t)(index % (size_t)request->best_of);
    const int32_t vocab_size = job->task.service->limits.vocab_size;
    sequence->held = sizeof *sequence + sampler_bytes(&sampling, vocab_size);
    const struct job_prepared *prepared = &job->prepared;
    const struct grammar_ends ends = {prepared->ends, prepared->num_ends, prepared->num_eos};
    if (prepared->grammar)
        sequence->form_held = grammar_text_bytes(vocab_size);
    sequence->held += sequence->form_held;
    if (request->thinking_budget >= 0)
        sequence->held += thinking_bytes(vocab_size);
    if (prepared->words)
        sequence->held += bad_words_bytes(prepared->words, prepared->num_bans);
    if (job_reserve(job, sequence->held, err) ||
        sampler_create(&sequence->sampler, &sampling, vocab_size,
                       sequence->prompt->ids + sequence->prompt->context,
                       job_prompt_own(sequence->prompt), err) ||
        detokenizer_create(&sequence->detokenizer, job->task.service->tokenizer,
                           request->skip_special_tokens, err)) {
        sequence_close(sequence);
        return -1;
    }
    if (request->chat_rules)
        detokenizer_keep(sequence->detokenizer, request->chat_rules->kept,
                         request->chat_rules->num_kept);
    if (detokenizer_prime(sequence->detokenizer, sequence->prompt->ids, sequence->prompt->count,
                          err) ||
        (prepared->grammar &&
         grammar_text_open(&sequence->form, grammars_entry_grammar(prepared->grammar), vocab_size,
                           &ends, err))) {
        sequence_close(sequence);
        return -1;
    }
    if (thinking_open(&sequence->thinking, request->chat_rules, request->thinking_budget,
                      vocab_size, err)) {
        sequence_close(sequence);
        return -1;
    }
    if (prepared->words && bad_words_open(&sequence->words, prepared->words, prepared->num_bans)) {
        sequence_close(sequence);
        return no_memory(err);
    }
    *out = sequence;
    return 0;
}

void sequence_close(struct sequence *sequence)
{
    if (!sequence)
        return;
    sequence->job->held_bytes -= (int64_t)sequence->held;
    state_free(sequence->state);
    sampler_free(sequence->sampler);
    detokenizer_free(sequence->detokenizer);
    bad_words_close(&sequence->words);
    grammar_text_close(sequence->form);
    thinking_close(&sequence->thinking);
    token_list_clear(&sequence->prefix.ids);
    free(sequence);
}

int64_t sequence_length(const struct sequence *sequence)
{
    return sequence->decoding ? (int64_t)sequence->prompt->count + sequence->choice->generated - 1
                              : sequence->taken;
}

int64_t sequence_most(const struct sequence *sequence)
{
    return (int64_t)sequence->prompt->count + sequence->job->asked.request.max_tokens;
}

int64_t sequence_behind(const struct sequence *sequence)
{
    return sequence->decoding ? sequence_length(sequence) - state_position(sequence->state) : 0;
}

/* How many of the piece's tokens begin before the last `held` bytes of its text. The others are
 * held back with these bytes. */
static size_t tokens_before(const struct sequence *sequence, size_t held)
{
    const struct piece *piece = &sequence->choice->piece;
    const char *text = piece->text.data + piece->text.length - held;
    size_t count = piece->num_tokens;
    if (held == 0)
        return count;
    int64_t end = sequence->characters - (int64_t)utf8_characters(text, held);
    while (count > 0 && piece->tokens[count - 1].text_offset >= end)
        count--;
    return count;
}

static size_t put_bytes(const struct piece *put, const struct piece_marks *marks)
{
    return piece_bytes(put) + put->text.capacity + marks->capacity * sizeof *marks->items;
}

/* What is put out is a part of the response that is kept. */
static int keep_put(struct sequence *sequence, struct error *err)
{
    struct piece *put = &sequence->choice->put;
    struct piece_marks *marks = &sequence->choice->marks;
    size_t before = put_bytes(put, marks);
    if (piece_join(put, &sequence->choice->piece) || piece_marks_add(marks, put))
        return no_memory(err);
    return job_reserve(sequence->job, put_bytes(put, marks) - before, err);
}

/* Moves `text_length` bytes of the choice's piece, and the tokens that begin there, into the
 * outbox.
 */
static int emit(struct sequence *sequence, size_t text_length, struct error *err)
{
    struct job *job = sequence->job;
    struct job_choice *choice = sequence->choice;
    if (!job->asked.request.stream)
        return 0;
    struct outbox_record record = {.choice = sequence->index,
                                   .prompt = !choice->prompt_told,
                                   .finish = choice->finish,
                                   .stop_index = choice->stop_index,
                                   .stop_token = choice->stop_token,
                                   .generated = job->run.generated};
    struct piece *piece = &choice->piece;
    size_t held = piece->text.length - text_length, tokens = piece->num_tokens;
    piece->num_tokens = tokens_before(sequence, held);
    piece->text.length = text_length;
    choice->prompt_told = true;
    ticket_lock(&job->task.ticket);
    bool taken = job->task.ticket.runs_on || !ticket_gone(&job->task.ticket);
    size_t before = job->shared.outbox.capacity;
    int result = taken ? outbox_put(&job->shared.outbox, &record, piece) : 0;
    size_t grown = job->shared.outbox.capacity - before;
    ticket_wake(&job->task.ticket);
    ticket_unlock(&job->task.ticket);
    if (result)
        return no_memory(err);
    if (grown && job_reserve(job, grown, err))
        return -1;
    if (job->asked.request.kept && keep_put(sequence, err))
        return -1;
    piece_keep(piece, piece->num_tokens, tokens - piece->num_tokens);
    piece->text.length = held;
    if (held)
        memmove(piece->text.data, piece->text.data + text_length, held);
    return 0;
}

/* The text's form cannot go on. What it does not support is the request's fault. */
static int form_failed(struct sequence *sequence, const struct error *err)
{
    struct api_error api = {0};
    if (err->code != ERROR_UNSUPPORTED)
        return -1;
    constraint_error(&sequence->job->asked.request.constraint, err, &api);
    job_fail(sequence->job, &api);
    return -1;
}

/* What the form takes grows with the readings of the text. */
static int hold_form(struct sequence *sequence, struct error *err)
{
    size_t held = grammar_text_held(sequence->form);
    if (held <= sequence->form_held)
        return 0;
    size_t more = held - sequence->form_held;
    sequence->form_held = held;
    sequence->held += more;
    return job_reserve(sequence->job, more, err);
}

/* The mask of the next draw, which depends on all tokens before it. */
static int make_mask(struct sequence *sequence, struct error *err)
{
    struct metrics *metrics = &sequence->job->task.service->metrics;
    if (!sequence->form)
        return 0;
    int64_t began = clock_nanos(CLOCK_MONOTONIC);
    sequence->mask = grammar_text_mask(sequence->form, err);
    atomic_fetch_add_explicit(&metrics->masks, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->mask_nanos, clock_nanos(CLOCK_MONOTONIC) - began,
                              memory_order_relaxed);
    return sequence->mask ? hold_form(sequence, err) : form_failed(sequence, err);
}

int sequence_mask(struct sequence *sequence, size_t *work, struct error *err)
{
    sequence->mask_due = false;
    int result = make_mask(sequence, err);
    *work += grammar_text_work(sequence->form);
    return result;
}

/* What ends a text: its form, where nothing more may come, or its length. */
static enum finish_reason finish_of(const struct sequence *sequence)
{
    const struct completion_request *request = &sequence->job->asked.request;
    const struct job_choice *choice = sequence->choice;
    if (sequence->form && choice->generated >= request->min_tokens &&
        grammar_text_over(sequence->form))
        return FINISH_STOP;
    return choice->generated >= request->max_tokens ? FINISH_LENGTH : FINISH_NONE;
}

int sequence_begin(struct sequence *sequence, struct error *err)
{
    sequence->decoding = true;
    sequence->choice->finish = finish_of(sequence);
    if (sequence->choice->finish == FINISH_NONE && make_mask(sequence, err))
        return -1;
    if (sequence->job->asked.request.echo || sequence->choice->finish != FINISH_NONE)
        return emit(sequence, 0, err);
    return 0;
}

/* Of the next token, or the one after it. */
static struct draw *draw_of(struct sequence *sequence, bool ahead)
{
    return &sequence->draws[(sequence->choice->generated + ahead) % 2];
}

/* Adds the token that was drawn to the piece, with its log-probabilities. Its text begins `lead`
 * characters behind what is certain. */
static int record_token(struct sequence *sequence, size_t lead, struct error *err)
{
    const struct draw *draw = draw_of(sequence, false);
    struct job_choice *choice = sequence->choice;
    struct token_logprob *top;
    size_t held = piece_bytes(&choice->piece);
    struct reply_token *token = piece_add(&choice->piece, &top);
    if (!token)
        return no_memory(err);
    if (job_reserve(sequence->job, piece_bytes(&choice->piece) - held, err))
        return -1;
    token->id = draw->id;
    token->text_offset = sequence->characters + (int64_t)lead;
    if (draw->wants_logprob) {
        token->has_logprob = true;
        token->logprob = draw->logprob;
        if (top)
            memcpy(top, draw->top, (size_t)draw->num_top * sizeof *top);
        choice->sum_logprob += token->logprob;
    }
    choice->generated++;
    sequence->job->run.generated++;
    return 0;
}

/* Whether the token ends the text by itself. It then adds no text. */
static bool ends_text(struct sequence *sequence, int32_t id)
{
    const struct completion_request *request = &sequence->job->asked.request;
    const struct service *service = sequence->job->task.service;
    struct job_choice *choice = sequence->choice;
    if (!request->ignore_eos && token_list_contains(service->eos_ids, service->num_eos, id)) {
        choice->finish = FINISH_STOP;
    } else if (token_list_contains(request->stop_token_ids, request->num_stop_token_ids, id)) {
        choice->finish = FINISH_STOP;
        choice->stop_token = id;
    }
    return choice->finish != FINISH_NONE;
}

/* The text ends with a stop string: cuts it off, and corrects the offsets of tokens beyond. */
static void cut_at_stop(struct sequence *sequence, size_t before, const struct stop_match *match)
{
    struct job_choice *choice = sequence->choice;
    struct piece *piece = &choice->piece;
    size_t end = before + match->end;
    size_t keep =
        sequence->job->asked.request.include_stop_str_in_output ? end : end - match->length;
    int64_t cut = (int64_t)utf8_characters(piece->text.data + keep, piece->text.length - keep);
    sequence->characters -= cut;
    piece->text.length = keep;
    for (size_t i = 0; i < piece->num_tokens; i++)
        if (piece->tokens[i].text_offset > sequence->characters)
            piece->tokens[i].text_offset = sequence->characters;
    choice->finish = FINISH_STOP;
    choice->stop_index = (int32_t)match->index;
}

/* Takes text that has become final, and looks for stop strings in it. */
static int add_text(struct sequence *sequence, const char *text, size_t length, struct error *err)
{
    struct job *job = sequence->job;
    struct job_choice *choice = sequence->choice;
    struct strbuf *all = &choice->piece.text;
    size_t before = all->length;
    strbuf_append(all, text, length);
    if (all->failed)
        return no_memory(err);
    sequence->characters += (int64_t)utf8_characters(text, length);
    /* Text that comes before min_tokens is no part of a stop string. */
    struct stop_match match;
    if (job->prepared.stops && choice->generated >= job->asked.request.min_tokens &&
        stop_scan_push(job->prepared.stops, &sequence->scan, text, length, &match))
        cut_at_stop(sequence, before, &match);
    return 0;
}

/* No token follows. What was held back belongs to the text, and may hold a stop string. */
static int flush(struct sequence *sequence, struct error *err)
{
    const char *text;
    size_t length;
    if (detokenizer_finish(sequence->detokenizer, &text, &length, err))
        return -1;
    return add_text(sequence, text, length, err);
}

/* Ends the text by EOS or a stop token. What was held back goes first; the end comes in a frame
 * without text. */
static int end_by_token(struct sequence *sequence, struct error *err)
{
    struct job_choice *choice = sequence->choice;
    enum finish_reason finish = choice->finish;
    int32_t stop_token = choice->stop_token;
    choice->finish = FINISH_NONE;
    choice->stop_token = -1;
    if (flush(sequence, err))
        return -1;
    struct piece *piece = &choice->piece;
    bool stopped = choice->finish != FINISH_NONE; /* by a string that was held back */
    if (!stopped && (piece->text.length || piece->num_tokens) &&
        emit(sequence, piece->text.length, err))
        return -1;
    if (record_token(sequence, 0, err))
        return -1;
    if (!stopped) {
        choice->finish = finish;
        choice->stop_token = stop_token;
    }
    return emit(sequence, piece->text.length, err);
}

/* Emits what is certain. A token that adds no text, while nothing is held back, is a frame too. */
static int emit_certain(struct sequence *sequence, struct error *err)
{
    const struct job *job = sequence->job;
    const struct job_choice *choice = sequence->choice;
    size_t length = choice->piece.text.length;
    if (choice->finish != FINISH_NONE)
        return emit(sequence, length, err);
    size_t held = job->prepared.stops && !job->asked.request.include_stop_str_in_output
                      ? stop_scan_held(job->prepared.stops, &sequence->scan)
                      : 0;
    if (length > held || (held == 0 && detokenizer_pending(sequence->detokenizer) == 0))
        return emit(sequence, length - held, err);
    return 0;
}

/* Keeps the token, since others may begin with this text, or it is set aside. */
static int keep_id(struct sequence *sequence, int32_t id, struct error *err)
{
    if (job_reserve(sequence->job, sizeof id, err))
        return -1;
    return token_list_push(&sequence->prefix.ids, id, err);
}

/* What may not come next. */
static void ban(struct sequence *sequence, bool may_end, struct draw *draw)
{
    const struct job_prepared *prepared = &sequence->job->prepared;
    size_t first = may_end ? prepared->num_bans - prepared->num_always : 0;
    draw->banned = prepared->num_bans > 0 ? prepared->bans + first : NULL;
    draw->num_banned = prepared->num_bans - first;
    if (!prepared->words)
        return;
    draw->num_banned =
        bad_words_ban(&sequence->words, prepared->words, draw->banned, draw->num_banned);
    draw->banned = sequence->words.banned;
}

struct draw *sequence_draw(struct sequence *sequence, bool ahead)
{
    const struct job *job = sequence->job;
    const struct completion_request *request = &job->asked.request;
    bool may_end = sequence->choice->generated + ahead >= request->min_tokens;
    struct draw *draw = draw_of(sequence, ahead);
    *draw = (struct draw){.sampler = sequence->sampler,
                          .mask = sequence->mask,
                          .wanted = request->logprob_token_ids,
                          .wants_logprob = request->logprobs >= 0 || request->best_of > request->n,
                          .num_top = sequence->choice->piece.num_top,
                          .ends = job->prepared.ends,
                          .num_ends = job->prepared.num_ends};
    ban(sequence, may_end, draw);
    const uint32_t *forced = thinking_mask(&sequence->thinking, sequence->mask);
    if (forced) {
        draw->mask = forced;
        draw->num_banned = 0;
    }
    return draw;
}

/* What the request itself forbids has left no token: a word of bad_words would be complete, or its
 * constraint asks for what may not come. */
static int nothing_left(struct sequence *sequence, struct error *err)
{
    struct api_error api = {0};
    const struct constraint *constraint = &sequence->job->asked.request.constraint;
    bool forced = thinking_mask(&sequence->thinking, sequence->mask) != NULL;
    bool form = sequence->form && !forced;
    const char *field = form ? constraint->param : forced ? "thinking_token_budget" : "bad_words";
    api_error_set(&api, API_INVALID_VALUE, field, "%s: no token is left that may come after %lld",
                  form ? constraint->name : field, (long long)sequence->choice->generated);
    job_fail(sequence->job, &api);
    return error_set(err, ERROR_INVALID, "no token is left to draw");
}

int sequence_take(struct sequence *sequence, double now, int *generated, struct error *err)
{
    struct job *job = sequence->job;
    struct job_choice *choice = sequence->choice;
    const struct draw *draw = draw_of(sequence, false);
    if (draw->id < 0 && draw->nan_id < 0 &&
        (job->prepared.words || sequence->form || sequence->thinking.on))
        return nothing_left(sequence, err);
    if (draw_check(draw, err))
        return -1;
    int32_t id = draw->id;
    sequence->next_token = id;
    if (job->prepared.words)
        bad_words_take(&sequence->words, job->prepared.words, id);
    if (choice->generated > 0)
        histogram_observe(&job->task.service->metrics.inter_token_latency,
                          now - sequence->last_token);
    else
        sequence->first_token = now;
    sequence->last_token = now;
    atomic_fetch_add_explicit(&job->task.service->metrics.generated_tokens, 1,
                              memory_order_relaxed);
    ++*generated;
    if (ends_text(sequence, id))
        return end_by_token(sequence, err);
    const char *text;
    size_t length;
    if (sequence->form && grammar_text_take(sequence->form, id, err))
        return form_failed(sequence, err);
    if (keep_id(sequence, id, err) ||
        detokenizer_push(sequence->detokenizer, id, &text, &length, err) ||
        record_token(sequence, detokenizer_lead(sequence->detokenizer), err) ||
        thinking_take(&sequence->thinking, text, length, err) ||
        add_text(sequence, text, length, err))
        return -1;
    enum finish_reason finish = finish_of(sequence);
    if (choice->finish == FINISH_NONE && finish != FINISH_NONE) {
        if (flush(sequence, err))
            return -1;
        if (choice->finish == FINISH_NONE)
            choice->finish = finish;
    }
    sequence->mask_due = sequence->form && choice->finish == FINISH_NONE;
    return emit_certain(sequence, err);
}
