/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/session_changes.h"

#include "api/chat_turns.h"
#include "server/log.h"
#include "server/states/checkpoint.h"
#include "server/states/session_leases.h"
#include "server/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A use is noted when the store is behind by so much; with a short time to live, by this part of
 * it. */
enum { MOST_BEHIND_SECONDS = 60, TTL_PARTS = 8 };

/* A change that somebody waits for: of `session`, which is busy until it ends. */
struct session_change {
    union { /* the first member */
        struct store_op op;
        struct store_commit commit;
        struct store_delete deletion;
    };
    struct sessions *sessions;
    struct session *session;        /* NULL: it is gone */
    struct session_content content; /* what it is to hold */
    struct session_meta meta;
    char text[SESSION_META_SIZE];
    bool tried;         /* it found no room once */
    bool forgets;       /* tokens that it held: their checkpoints' files are to be gone, too */
    session_done *done; /* NULL: nobody waits any more */
    void *context;
    struct session_claim *claims;
    struct checkpoint_waiter waiter;
    struct session_change *next; /* in sessions->leaving */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Logs the first failure, and the first success after it. */
static void tell_failure(struct sessions *sessions, const struct error *err)
{
    bool failed = err->code != ERROR_NONE;
    if (failed && !sessions->failing)
        log_message(LOG_LEVEL_ERROR, "sessions cannot be written to disk: %s", err->message);
    else if (!failed && sessions->failing)
        log_message(LOG_LEVEL_INFO, "sessions are written to disk again");
    sessions->failing = failed;
}

/* How many tokens are the same in both. */
static int64_t common_tokens(const struct session *session, const struct session_content *content)
{
    int64_t most = least(session->count, content->count), common = 0;
    if (!content->tokens)
        return most;
    while (common < most && content->tokens[common] == session->tokens[common])
        common++;
    return common;
}

/* The same of the bytes of turns. */
static int64_t common_turns(const struct session *session, const struct session_content *content)
{
    enum { BLOCK = 4096 };
    int64_t most = least(session->turns_length, content->turns_length), common = 0;
    if (!content->turns)
        return most;
    while (most - common >= BLOCK &&
           memcmp(content->turns + common, session->turns + common, BLOCK) == 0)
        common += BLOCK;
    while (common < most && content->turns[common] == session->turns[common])
        common++;
    return common;
}

/* So much of what the store has, or is being given, stays. */
static void keep_common(struct session *session, const struct session_content *content)
{
    int64_t tokens = common_tokens(session, content), turns = common_turns(session, content);
    session->kept = least(session->kept, tokens);
    session->low = least(session->low, tokens);
    session->turns_kept = least(session->turns_kept, turns);
    session->turns_low = least(session->turns_low, turns);
}

/* The session now holds this. */
static void apply(struct session *session, struct session_content *content)
{
    struct state_tree *tree = session->sessions->options.tree;
    int64_t before = session->count;
    bool drops = common_tokens(session, content) < before;
    keep_common(session, content);
    int32_t *old = session_set_tokens(session, content->tokens ? content->tokens : session->tokens,
                                      content->count);
    session_set_turns(session, content->turns ? content->turns : session->turns,
                      content->turns_length);
    /* What lies behind is nobody's any more, unless another session goes on there. */
    if (drops)
        state_tree_forget(tree, session->space, old ? old : session->tokens, before);
    free(old);
    session_shrink(session);
    content->tokens = NULL;
    content->turns = NULL;
}

void session_changes_take(struct session *session, const struct session_content *found)
{
    struct session_content content = *found;
    apply(session, &content);
    session->kept = session->most = session->count;
    session->turns_kept = session->turns_most = session->turns_length;
    session->stored = true;
}

static void free_again(struct session *session)
{
    session_leases_give(session);
    session->busy = session->fresh = false;
    session_set_leaves(session, false);
    session_promise(session, 0, 0);
}

/* More claims of turns that are not in the store. */
static void give_claims(struct session *session, struct session_claim *more)
{
    struct session_claim **last = &session->claims;
    while (*last)
        last = &(*last)->next;
    *last = more;
    for (struct session_claim *claim = session->claims; claim; claim = claim->next)
        claim->reply.next = claim->next ? &claim->next->reply : NULL;
}

static struct session_claim *take_claims(struct session *session, const struct store_reply **first)
{
    struct session_claim *claims = session->claims;
    session->claims = NULL;
    *first = claims ? &claims->reply : NULL;
    return claims;
}

/* Without memory the turn is not known by its request once the server ends. */
static void add_claim(struct session *session, const struct store_reply *claim)
{
    struct session_claim *copy = claim ? malloc(sizeof *copy + claim->name_length) : NULL;
    if (!copy)
        return;
    *copy = (struct session_claim){.reply = *claim};
    memcpy(copy->name, claim->name, claim->name_length);
    copy->reply.name = copy->name;
    give_claims(session, copy);
}

static void name(const struct session *session, struct store_session_op *op)
{
    op->owner = session->meta.owner;
    op->id = session->meta.id;
    op->lease = session->lease;
    memcpy(op->name, session->name, sizeof session->name);
}

/* Begins to write what `commit` says but for the session's name, which it takes from the session.
 */
static void begin_write(struct session *session, struct store_commit *commit)
{
    struct sessions *sessions = session->sessions;
    commit->from = least(session->kept, commit->count);
    commit->turns_from = least(session->turns_kept, commit->turns_length);
    commit->fresh = !session->stored;
    commit->cuts = session->stored &&
                   (commit->from < session->most || commit->turns_from < session->turns_most);
    if (session->most < commit->count)
        session->most = commit->count;
    if (session->turns_most < commit->turns_length)
        session->turns_most = commit->turns_length;
    name(session, &commit->session);
    session->stored = true;
    sessions->writing++;
    state_tree_disk_room(sessions->options.tree, store_commit_bytes(commit));
    store_commit(sessions->options.store, commit);
}

/* ---- what the store has later ---- */

/* A write of a session as it was, which changes meanwhile. */
struct behind {
    struct store_commit commit; /* the first member */
    struct sessions *sessions;
    struct session_meta meta;
    char text[SESSION_META_SIZE];
    bool fresh;
    struct session_claim *claims;
    int32_t tokens[]; /* and then the turns */
};

static void begin_behind(struct session *session);

static void on_behind(struct store_op *op)
{
    struct behind *behind = (struct behind *)op;
    struct sessions *sessions = behind->sessions;
    bool failed = op->error.code != ERROR_NONE;
    /* It may be gone, and another of its name there. */
    struct session *session = session_lookup(sessions, behind->meta.owner, behind->meta.id);
    sessions->writing--;
    tell_failure(sessions, &op->error);
    if (session && strcmp(session->name, behind->commit.session.name) == 0) {
        session->writing = false;
        if (failed) {
            session->stored = !behind->fresh;
            give_claims(session, behind->claims);
            behind->claims = NULL;
        } else {
            session->kept = session->low;
            session->most = behind->commit.count;
            session->turns_kept = session->turns_low;
            session->turns_most = behind->commit.turns_length;
            session->noted = behind->meta.used;
            session_set_unsaved(session, session->changed);
            if (session->changed && !session->change)
                begin_behind(session);
        }
    }
    session_claims_free(behind->claims);
    free(behind);
    if (!failed)
        session_changes_retry(sessions, false);
}

/* Without memory it is left for later. */
static void begin_behind(struct session *session)
{
    size_t bytes = (size_t)session->count * sizeof *session->tokens;
    size_t turns = (size_t)session->turns_length;
    struct behind *behind = malloc(sizeof *behind + bytes + turns);
    if (!behind)
        return;
    *behind = (struct behind){
        .sessions = session->sessions, .meta = session->meta, .fresh = !session->stored};
    behind->meta.turns = session->turns_length;
    if (bytes)
        memcpy(behind->tokens, session->tokens, bytes);
    if (turns)
        memcpy((char *)behind->tokens + bytes, session->turns, turns);
    behind->commit =
        (struct store_commit){.session.op.done = on_behind,
                              .meta = behind->text,
                              .meta_length = session_meta_encode(&behind->meta, behind->text),
                              .tokens = behind->tokens,
                              .count = session->count,
                              .turns = (const char *)behind->tokens + bytes,
                              .turns_length = session->turns_length};
    behind->claims = take_claims(session, &behind->commit.claims);
    session->writing = true;
    session->changed = false;
    begin_write(session, &behind->commit);
    session->low = session->count;
    session->turns_low = session->turns_length;
}

/* The store does not have the session as it is. */
static void write_later(struct session *session)
{
    session_set_unsaved(session, true);
    session->changed = true;
    if (!session->writing)
        begin_behind(session);
}

void session_changes_retry(struct sessions *sessions, bool all)
{
    bool begun = false;
    size_t count = sessions->count;
    for (size_t i = 0; sessions->unsaved && (all || !begun) && i < count; i++) {
        size_t at = sessions->retry_next++ % count;
        struct session *session = sessions->list[at];
        if (!session->unsaved || session->writing || session->busy)
            continue;
        begin_behind(session);
        begun = true;
    }
}

/* ---- what is waited for ---- */

static void finish(struct session_change *change, const struct api_error *err)
{
    session_done *done = change->done;
    void *context = change->context;
    session_claims_free(change->claims);
    free(change->content.tokens);
    free(change->content.turns);
    free(change);
    if (done)
        done(context, err);
}

static void on_files_gone(void *context)
{
    struct session_change *change = context, **link = &change->sessions->leaving;
    while (*link != change)
        link = &(*link)->next;
    *link = change->next;
    change->sessions->writing--;
    finish(change, NULL);
}

/* The change is made. Who waits for it waits until what it dropped is gone from the disk. */
static void finish_gone(struct session_change *change)
{
    struct sessions *sessions = change->sessions;
    sessions->writing++;
    change->next = sessions->leaving;
    sessions->leaving = change;
    change->waiter = (struct checkpoint_waiter){.then = on_files_gone, .context = change};
    state_tree_await_gone(sessions->options.tree, &change->waiter);
}

static struct session_change *change_of(struct store_op *op)
{
    return (struct session_change *)op;
}

/* A change has ended. What the client is told, in *err. */
static bool ended(struct session_change *change, struct api_error *err)
{
    struct session *session = change->session;
    session->sessions->writing--;
    session->sessions->changes--;
    session->change = NULL;
    if (change->op.refusal == STORE_ACCEPTED) /* else no fault of the disk's */
        tell_failure(session->sessions, &change->op.error);
    if (change->op.error.code == ERROR_NONE)
        return true;
    *err = (struct api_error){0};
    session_leases_explain(session->meta.id, &change->op, err);
    session_leases_doubt(session);
    return false;
}

/* Another file may have taken the room that was made: makes more, and tries once again. */
static bool try_again(struct session_change *change)
{
    enum { TIMES = 4 }; /* as much as the first time */
    struct sessions *sessions = change->session->sessions;
    if (change->op.error.code != ERROR_NO_MEMORY || change->tried)
        return false;
    change->tried = true;
    error_clear(&change->op.error);
    state_tree_disk_room(sessions->options.tree, TIMES * store_commit_bytes(&change->commit));
    store_commit(sessions->options.store, &change->commit);
    return true;
}

static void on_saved(struct store_op *op)
{
    struct session_change *change = change_of(op);
    struct session *session = change->session;
    struct api_error err;
    bool fresh = session->fresh;
    if (try_again(change))
        return;
    if (ended(change, &err)) {
        session->lease.version = session->lease.fence;
        session->lease.holder[0] = 0; /* it ended with the commit */
        if (session->state != change->commit.state)
            state_tree_drop_shared(session->sessions->options.tree, session->space, session->tokens,
                                   session->state);
        session->state = change->commit.state;
        apply(session, &change->content);
        session->kept = session->most = session->count;
        session->turns_kept = session->turns_most = session->turns_length;
        session->meta.used = session->noted = change->meta.used;
        free_again(session);
        if (change->forgets)
            finish_gone(change);
        else
            finish(change, NULL);
        return;
    }
    session->stored = !change->commit.fresh;
    free_again(session);
    if (fresh)
        session_forget(session);
    finish(change, &err);
}

static struct session_change *change_create(struct session *session,
                                            void (*ended_op)(struct store_op *op),
                                            session_done *done, void *context)
{
    struct session_change *change = calloc(1, sizeof *change);
    if (!change)
        return NULL;
    change->sessions = session->sessions;
    change->session = session;
    change->done = done;
    change->context = context;
    change->op.done = ended_op;
    return change;
}

static void take_place(struct session *session, struct session_change *change)
{
    session->busy = true;
    session->change = change;
    session->sessions->changes++;
}

static void refuse(struct session *session, session_done *done, void *context)
{
    struct api_error err = {0};
    bool fresh = session->fresh;
    free_again(session);
    if (fresh)
        session_forget(session);
    api_error_set(&err, API_OUT_OF_MEMORY, NULL,
                  "out of memory for the session, which is as it was");
    if (done)
        done(context, &err);
}

static void save_now(struct session *session, const struct session_content *content,
                     const struct store_reply *claim, session_done *done, void *context)
{
    struct session_change *change = change_create(session, on_saved, done, context);
    if (!change) {
        free(content->tokens);
        free(content->turns);
        refuse(session, done, context);
        return;
    }
    take_place(session, change);
    keep_common(session, content);
    change->content = *content;
    change->forgets = common_tokens(session, content) < session->count;
    change->meta = session->meta;
    change->meta.turns = content->turns_length;
    change->commit.meta = change->text;
    change->commit.meta_length = session_meta_encode(&change->meta, change->text);
    change->commit.tokens = content->tokens ? content->tokens : session->tokens;
    change->commit.count = content->count;
    change->commit.turns = content->turns ? content->turns : session->turns;
    change->commit.turns_length = content->turns_length;
    add_claim(session, claim);
    change->claims = take_claims(session, &change->commit.claims);
    change->commit.state = state_tree_soon_stored(session->sessions->options.tree, session->space,
                                                  change->commit.tokens, change->commit.count);
    begin_write(session, &change->commit);
}

void session_changes_save(struct session *session, const struct session_content *wanted,
                          const struct store_reply *claim, session_done *done, void *context)
{
    const struct sessions_options *options = &session->sessions->options;
    struct session_content content = *wanted;
    if (!content.turns)
        content.turns_length =
            (int64_t)chat_turns_until(session->turns, (size_t)session->turns_length, content.count);
    if (options->store && !options->memory_only) {
        save_now(session, &content, claim, done, context);
        return;
    }
    apply(session, &content);
    free_again(session);
    if (options->store) {
        add_claim(session, claim);
        write_later(session);
    }
    done(context, NULL);
}

static void on_removed(struct store_op *op)
{
    struct session_change *change = change_of(op);
    struct session *session = change->session;
    struct api_error err;
    bool gone = ended(change, &err);
    free_again(session);
    if (!gone) {
        give_claims(session, change->claims);
        change->claims = NULL;
        finish(change, &err);
        return;
    }
    session_forget(session);
    finish_gone(change);
}

void session_changes_remove(struct session *session, session_done *done, void *context)
{
    struct sessions *sessions = session->sessions;
    struct session_change *change = change_create(session, on_removed, done, context);
    if (!change) {
        refuse(session, done, context);
        return;
    }
    if (!session->stored) {
        session_forget(session);
        finish_gone(change);
        return;
    }
    take_place(session, change);
    change->claims = take_claims(session, &change->deletion.claims);
    name(session, &change->deletion.session);
    sessions->writing++;
    store_delete(sessions->options.store, &change->deletion);
}

void session_changes_give_up(struct sessions *sessions, const struct api_error *err)
{
    session_leases_give_up(sessions, err);
    /* Who is told may end other sessions: from the last, none is left out. */
    for (size_t i = sessions->count; i-- > 0;) {
        struct session_change *change = i < sessions->count ? sessions->list[i]->change : NULL;
        session_done *done = change ? change->done : NULL;
        if (!done)
            continue;
        change->done = NULL;
        done(change->context, err);
    }
    for (struct session_change *change = sessions->leaving; change; change = change->next) {
        session_done *done = change->done;
        change->done = NULL;
        if (done)
            done(change->context, err);
    }
}

/* ---- what nobody waits for ---- */

struct errand {
    union { /* the first member */
        struct store_op op;
        struct store_session_op about;
        struct store_use use;
        struct store_delete deletion;
    };
    struct sessions *sessions;
};

static void on_errand(struct store_op *op)
{
    struct errand *errand = (struct errand *)op;
    if (op->error.code != ERROR_NONE)
        log_message(LOG_LEVEL_WARN, "the row of a session: %s", op->error.message);
    errand->sessions->writing--;
    free(errand);
}

/* NULL: no memory; it is left undone. */
static struct errand *begin_errand(struct sessions *sessions, const char *row)
{
    struct errand *errand = calloc(1, sizeof *errand);
    if (!errand)
        return NULL;
    errand->sessions = sessions;
    errand->op.done = on_errand;
    snprintf(errand->about.name, sizeof errand->about.name, "%s", row);
    sessions->writing++;
    return errand;
}

void session_changes_use(struct session *session)
{
    double behind = MOST_BEHIND_SECONDS;
    session_use(session);
    double ttl = session_ttl(session->sessions, session->meta.id);
    if (ttl > 0 && ttl < TTL_PARTS * behind)
        behind = ttl / TTL_PARTS;
    if (!session->stored || session_is_copy(session) ||
        session->meta.used - session->noted < behind)
        return;
    session->noted = session->meta.used;
    struct errand *errand = begin_errand(session->sessions, session->name);
    if (errand && !store_use(session->sessions->options.store, &errand->use))
        on_errand(&errand->op);
}

void session_changes_discard(struct sessions *sessions, const char *name)
{
    struct errand *errand = begin_errand(sessions, name);
    if (errand)
        store_delete(sessions->options.store, &errand->deletion);
}
