/* SPDX-License-Identifier: Apache-2.0 */
#include "server/grammars.h"

#include "lib/base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Idle grammars stay while all take no more than this part of the memory for bodies. */
enum { PART = 2 };

struct grammars_entry {
    struct grammars_entry *newer, *older; /* in the order of their last use */
    struct grammar *grammar;
    int64_t bytes;
    int users;
    enum grammar_kind kind;
    size_t length;
    char spec[]; /* [length] */
};

/* A constraint that a thread compiles; others that want it wait. */
struct compiling {
    struct compiling *next;
    const struct constraint *constraint;
};

struct grammars {
    struct grammar_vocabulary *vocabulary;
    struct admission *admission;
    struct metrics *metrics;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t compiled;
    struct compiling *compiling; /* now; NULL: nothing is */
    struct grammars_entry *newest, *oldest;
    int64_t bytes; /* of all entries */
};

int grammars_create(struct grammars **out, const struct tokenizer *tokenizer, int32_t vocab_size,
                    struct admission *admission, struct metrics *metrics, struct error *err)
{
    struct grammars *grammars = calloc(1, sizeof *grammars);
    *out = NULL;
    if (!grammars)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    grammars->admission = admission;
    grammars->metrics = metrics;
    if (grammar_vocabulary_create(&grammars->vocabulary, tokenizer, vocab_size, err)) {
        free(grammars);
        return -1;
    }
    pthread_mutex_init(&grammars->lock, NULL);
    pthread_cond_init(&grammars->compiled, NULL);
    *out = grammars;
    return 0;
}

struct grammar *grammars_entry_grammar(const struct grammars_entry *entry)
{
    return entry->grammar;
}

/* The list; under the lock. */

static void unlink_entry(struct grammars *grammars, struct grammars_entry *entry)
{
    if (grammars->newest == entry)
        grammars->newest = entry->older;
    else
        entry->newer->older = entry->older;
    if (grammars->oldest == entry)
        grammars->oldest = entry->newer;
    else
        entry->older->newer = entry->newer;
}

static void link_newest(struct grammars *grammars, struct grammars_entry *entry)
{
    entry->newer = NULL;
    entry->older = grammars->newest;
    if (entry->older)
        entry->older->newer = entry;
    else
        grammars->oldest = entry;
    grammars->newest = entry;
}

/* Drops the idle grammar that was used the longest ago. False: there is none. */
static bool drop_oldest(struct grammars *grammars)
{
    struct grammars_entry *entry = grammars->oldest;
    while (entry && entry->users > 0)
        entry = entry->newer;
    if (!entry)
        return false;
    unlink_entry(grammars, entry);
    grammars->bytes -= entry->bytes;
    atomic_store(&grammars->metrics->grammar_bytes, grammars->bytes);
    admission_body(grammars->admission, -entry->bytes);
    grammar_release(entry->grammar);
    free(entry);
    return true;
}

static struct grammars_entry *find(struct grammars *grammars, const struct constraint *constraint)
{
    for (struct grammars_entry *entry = grammars->newest; entry; entry = entry->older)
        if (entry->kind == constraint->kind && entry->length == constraint->length &&
            (entry->length == 0 || memcmp(entry->spec, constraint->spec, entry->length) == 0))
            return entry;
    return NULL;
}

static struct grammars_entry *use(struct grammars *grammars, struct grammars_entry *entry)
{
    entry->users++;
    unlink_entry(grammars, entry);
    link_newest(grammars, entry);
    return entry;
}

void grammars_release(struct grammars *grammars, struct grammars_entry *entry)
{
    if (!entry)
        return;
    int64_t most = admission_body_limit(grammars->admission) / PART;
    pthread_mutex_lock(&grammars->lock);
    entry->users--;
    while (grammars->bytes > most && drop_oldest(grammars))
        ;
    pthread_mutex_unlock(&grammars->lock);
}

void grammars_free(struct grammars *grammars)
{
    if (!grammars)
        return;
    while (drop_oldest(grammars))
        ;
    grammar_vocabulary_free(grammars->vocabulary);
    pthread_cond_destroy(&grammars->compiled);
    pthread_mutex_destroy(&grammars->lock);
    free(grammars);
}

/* Compiling. */

static int compile(struct grammars *grammars, const struct constraint *constraint,
                   struct grammar **grammar, struct api_error *err)
{
    struct error error = ERROR_INIT;
    json_t *spec;
    int64_t began = clock_nanos(CLOCK_MONOTONIC);
    if (constraint_load(constraint, &spec, err))
        return -1;
    int result = grammar_compile(grammar, constraint->kind, spec, grammars->vocabulary, &error);
    json_decref(spec);
    atomic_fetch_add(&grammars->metrics->grammars_compiled, result == 0);
    atomic_fetch_add(&grammars->metrics->grammar_compile_nanos,
                     clock_nanos(CLOCK_MONOTONIC) - began);
    return result ? constraint_error(constraint, &error, err) : 0;
}

/* Takes the memory of a grammar, for which idle ones make room. Under the lock. */
static int reserve(struct grammars *grammars, const struct constraint *constraint, int64_t bytes,
                   struct api_error *err)
{
    if (!admission_possible(grammars->admission, bytes))
        return api_error_set(err, API_BODY_TOO_LARGE, constraint->param,
                             "%s: its grammar takes %lld bytes, more than --max-body-memory",
                             constraint->name, (long long)bytes);
    while (!admission_body(grammars->admission, bytes))
        if (!drop_oldest(grammars))
            return api_error_set(
                err, API_OUT_OF_MEMORY, constraint->param,
                "%s: its grammar takes more memory than --max-body-memory has left",
                constraint->name);
    grammars->bytes += bytes;
    atomic_store(&grammars->metrics->grammar_bytes, grammars->bytes);
    return 0;
}

/* Lists a grammar, which it takes over. */
static int list(struct grammars *grammars, const struct constraint *constraint,
                struct grammar *grammar, struct grammars_entry **out, struct api_error *err)
{
    struct grammars_entry *entry = calloc(1, sizeof *entry + constraint->length);
    int result = 0;
    if (entry) {
        entry->grammar = grammar;
        entry->kind = constraint->kind;
        entry->length = constraint->length;
        entry->bytes = (int64_t)(grammar_bytes(grammar) + sizeof *entry + constraint->length);
        if (entry->length > 0)
            memcpy(entry->spec, constraint->spec, entry->length);
    }
    pthread_mutex_lock(&grammars->lock);
    if (!entry)
        result = api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    else if ((result = reserve(grammars, constraint, entry->bytes, err)) == 0) {
        entry->users = 1;
        link_newest(grammars, entry);
        *out = entry;
    }
    pthread_mutex_unlock(&grammars->lock);
    if (*out != entry || !entry) {
        grammar_release(grammar);
        free(entry);
    }
    return result;
}

static bool is_compiled_now(const struct grammars *grammars, const struct constraint *constraint)
{
    for (const struct compiling *at = grammars->compiling; at; at = at->next)
        if (at->constraint->kind == constraint->kind &&
            at->constraint->length == constraint->length &&
            (constraint->length == 0 ||
             memcmp(at->constraint->spec, constraint->spec, constraint->length) == 0))
            return true;
    return false;
}

static void end_compiling(struct grammars *grammars, struct compiling *own)
{
    struct compiling **link = &grammars->compiling;
    pthread_mutex_lock(&grammars->lock);
    while (*link != own)
        link = &(*link)->next;
    *link = own->next;
    pthread_cond_broadcast(&grammars->compiled);
    pthread_mutex_unlock(&grammars->lock);
}

/* Counts what the schemas of a request's constraint have that is not enforced. */
static void count_annotations(struct grammars *grammars, const struct grammars_entry *entry)
{
    unsigned annotations = grammar_annotations(entry->grammar);
    for (int i = 0; i < NUM_ANNOTATIONS; i++)
        atomic_fetch_add(&grammars->metrics->annotations[i], annotations >> i & 1);
}

int grammars_get(struct grammars *grammars, const struct constraint *constraint,
                 struct grammars_entry **out, struct api_error *err)
{
    struct compiling own = {.constraint = constraint};
    struct grammar *grammar;
    *out = NULL;
    pthread_mutex_lock(&grammars->lock);
    while (is_compiled_now(grammars, constraint))
        pthread_cond_wait(&grammars->compiled, &grammars->lock);
    struct grammars_entry *entry = find(grammars, constraint);
    if (entry) {
        *out = use(grammars, entry);
    } else {
        own.next = grammars->compiling;
        grammars->compiling = &own;
    }
    pthread_mutex_unlock(&grammars->lock);
    atomic_fetch_add(&grammars->metrics->grammar_hits, entry != NULL);
    if (entry) {
        count_annotations(grammars, entry);
        return 0;
    }
    int result = compile(grammars, constraint, &grammar, err);
    if (result == 0)
        result = list(grammars, constraint, grammar, out, err);
    end_compiling(grammars, &own);
    if (result == 0)
        count_annotations(grammars, *out);
    return result;
}
