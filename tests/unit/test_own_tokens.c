/* SPDX-License-Identifier: Apache-2.0 */
/* Which special tokens of a chat that comes back the model has written: those at the same place of
 * the same chat, and no others; whose they are; how many are remembered. */
#include "server/own_tokens.h"
#include "tests/unit/sanitized.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(own_tokens);

/* Special: <a>, <b> (looked for in the normalized text), <a><c>. Not special: <t>. */
static const char TOKENIZER[] =
    "{\"version\":\"1.0\",\"added_tokens\":["
    "{\"id\":3,\"content\":\"<a>\",\"special\":true,\"normalized\":false,\"single_word\":false,"
    "\"lstrip\":false,\"rstrip\":false},"
    "{\"id\":4,\"content\":\"<b>\",\"special\":true,\"normalized\":true,\"single_word\":false,"
    "\"lstrip\":false,\"rstrip\":false},"
    "{\"id\":5,\"content\":\"<a><c>\",\"special\":true,\"normalized\":false,\"single_word\":false,"
    "\"lstrip\":false,\"rstrip\":false},"
    "{\"id\":6,\"content\":\"<t>\",\"special\":false,\"normalized\":false,\"single_word\":false,"
    "\"lstrip\":false,\"rstrip\":false}],"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
    "\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
    "\"trim_offsets\":true,\"use_regex\":false},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<\":0,\">\":1,\"a\":2},\"merges\":[]}}";

static struct tokenizer *tokenizer;
static struct own_tokens *own;
static struct error err;

static void begin(void)
{
    error_clear(&err);
    cr_assert_eq(tokenizer_load(&tokenizer, TOKENIZER, strlen(TOKENIZER), &err), 0, "%s",
                 err.message);
    cr_assert_eq(own_tokens_create(&own, tokenizer, &err), 0);
}

static void end(void)
{
    own_tokens_free(own);
    tokenizer_free(tokenizer);
}

static struct own_text text_of(const char *text)
{
    return (struct own_text){.owner = "key", .text = text, .length = strlen(text)};
}

/* The text is a prompt of the template's, then a reply, whose first token is special. */
static void say(const char *prompt, const char *reply, size_t token, uint64_t tenant)
{
    char all[64];
    snprintf(all, sizeof all, "%s%s", prompt, reply);
    const struct own_text text = text_of(all);
    struct text_span span = {0, token};
    own_tokens_add(own, &text, tenant, &(struct span_list){0}, strlen(prompt),
                   &(struct span_list){&span, 1, 1});
}

/* Whether the first `token` bytes of the reply, which is input as a whole, are a token. */
static bool said(struct own_text text, const char *prompt, const char *reply, size_t token)
{
    char all[64];
    struct span_list input = {0};
    size_t at = strlen(prompt);
    snprintf(all, sizeof all, "%s%s", prompt, reply);
    text.text = all;
    text.length = strlen(all);
    cr_assert_eq(span_list_push(&input, at, text.length, &err), 0);
    cr_assert_eq(own_tokens_find(own, &text, &input, &err), 0);
    size_t from = input.count > 0 ? input.items[0].start : text.length;
    cr_expect(input.count <= 1 && (from == at || from == at + token));
    span_list_clear(&input);
    return from != at;
}

Test(own_tokens, whose_they_are, .init = begin, .fini = end)
{
    struct own_text text = text_of("");
    cr_expect_not(said(text, "p", "<a>", 3));
    say("p", "<a>", 3, 0);
    cr_expect(said(text, "p", "<a>", 3));
    cr_expect(said(text, "p", "<a>xyz<a><b>", 3));
    cr_expect_not(said(text, "p", "<b>", 3));
    cr_expect_not(said(text, "q", "<a>", 3));
    cr_expect_not(said(text, "p", "<a><c>", 6)); /* a token that is longer */
    text.owner = "";
    cr_expect_not(said(text, "p", "<a>", 3));
    text = (struct own_text){.owner = "key", .salt = "s", .salt_length = 1};
    cr_expect_not(said(text, "p", "<a>", 3));
    /* Nor where the parts of a place are cut in another way. */
    text = (struct own_text){.owner = "ke", .salt = "y", .salt_length = 1};
    cr_expect_not(said(text, "p", "<a>", 3));
}

Test(own_tokens, without_a_record_nothing_changes, .init = begin, .fini = end)
{
    struct span_list none = {0};
    struct own_text text = text_of("<a>");
    cr_expect_eq(own_tokens_find(NULL, &text, &none, &err), 0);
    cr_expect_eq(own_tokens_find(own, &text, &none, &err), 0);
    own_tokens_add(NULL, &text, 0, &none, 0, &none);
    own_tokens_free(NULL);
}

/* ---- any text ---- */

static unsigned seed = 62;

static size_t roll(size_t sides)
{
    return (size_t)rand_r(&seed) % sides;
}

/* A text, and what of it is input. */
struct written {
    char text[1024];
    size_t length;
    struct span_list input;
    struct span_list special; /* of the reply, counted from where that begins */
};

static void extend(struct span_list *list, size_t start, size_t end)
{
    if (list->count > 0 && list->items[list->count - 1].end == start)
        list->items[list->count - 1].end = end;
    else
        cr_assert_eq(span_list_push(list, start, end, &err), 0);
}

/* Pieces, each written by the template or by a client: then also spelled byte by byte. In a reply
 * those of the model that are tokens are in `special`. */
static void write_pieces(struct written *w, size_t count, size_t reply)
{
    static const char *const PIECES[] = {"<a>", "<b>", "<t>", "<", "a", ">", "b>", "<a"};
    for (; count > 0; count--) {
        const char *piece = PIECES[roll(sizeof PIECES / sizeof *PIECES)];
        size_t size = strlen(piece), start = w->length;
        bool token = (strcmp(piece, "<a>") == 0 || strcmp(piece, "<b>") == 0) && roll(2);
        bool own_piece = reply == SIZE_MAX ? token || roll(2) : token;
        memcpy(w->text + start, piece, size + 1);
        w->length += size;
        if (!own_piece)
            extend(&w->input, start, w->length);
        else if (reply != SIZE_MAX)
            cr_assert_eq(span_list_push(&w->special, start - reply, w->length - reply, &err), 0);
    }
}

/* The chat comes back with what is in `as`; its reply is input from `reply` on. Expected is that up
 * to byte `same` all special tokens of the reply are found. */
static void expect_found(const struct written *as, const struct span_list *prompt, size_t reply,
                         size_t same)
{
    const struct own_text text = text_of(as->text);
    struct span_list input = {0}, wanted = {0};
    size_t at = reply;
    for (size_t i = 0; i < prompt->count; i++) {
        extend(&input, prompt->items[i].start, prompt->items[i].end);
        extend(&wanted, prompt->items[i].start, prompt->items[i].end);
    }
    if (as->length > reply)
        extend(&input, reply, as->length);
    for (size_t i = 0; i < as->special.count && reply + as->special.items[i].end <= same; i++) {
        if (at < reply + as->special.items[i].start)
            extend(&wanted, at, reply + as->special.items[i].start);
        at = reply + as->special.items[i].end;
    }
    if (at < as->length)
        extend(&wanted, at, as->length);
    cr_assert_eq(own_tokens_find(own, &text, &input, &err), 0);
    cr_expect_eq(input.count, wanted.count, "%s: %zu spans, not %zu", as->text, input.count,
                 wanted.count);
    for (size_t i = 0; i < input.count && i < wanted.count; i++)
        cr_expect(input.items[i].start == wanted.items[i].start &&
                      input.items[i].end == wanted.items[i].end,
                  "%s: span %zu", as->text, i);
    span_list_clear(&input);
    span_list_clear(&wanted);
}

Test(own_tokens, any_text_keeps_its_tokens_up_to_a_change, .init = begin, .fini = end)
{
    for (int round = 0; round < (SANITIZED ? 300 : 3000); round++) {
        struct written w = {0};
        struct span_list prompt = {0};
        w.length = (size_t)snprintf(w.text, sizeof w.text, "%d:", round);
        write_pieces(&w, 1 + roll(6), SIZE_MAX);
        size_t reply = w.length;
        for (size_t i = 0; i < w.input.count; i++)
            extend(&prompt, w.input.items[i].start, w.input.items[i].end);
        write_pieces(&w, 1 + roll(8), reply);
        struct own_text text = text_of(w.text);
        own_tokens_add(own, &text, 0, &prompt, reply, &w.special);
        expect_found(&w, &prompt, reply, w.length);
        size_t changed = 2 + roll(w.length - 2);
        w.text[changed] = '!';
        expect_found(&w, &prompt, reply, changed);
        span_list_clear(&w.input);
        span_list_clear(&w.special);
        span_list_clear(&prompt);
    }
}

Test(own_tokens, a_prompt_that_a_client_has_forged, .init = begin, .fini = end)
{
    /* The same text, whose first token was the template's. */
    struct text_span reply = {5, 9}, both[] = {{0, 3}, {5, 9}};
    say("<a>p:", "<b>x", 3, 0);
    const struct own_text text = text_of("<a>p:<b>x");
    struct span_list input = {0};
    cr_assert_eq(span_list_push(&input, reply.start, reply.end, &err), 0);
    cr_assert_eq(own_tokens_find(own, &text, &input, &err), 0);
    cr_expect_eq(input.items[0].start, 8);
    input.count = 0;
    for (size_t i = 0; i < 2; i++)
        cr_assert_eq(span_list_push(&input, both[i].start, both[i].end, &err), 0);
    cr_assert_eq(own_tokens_find(own, &text, &input, &err), 0);
    cr_expect(input.count == 2 && input.items[0].start == 0 && input.items[1].start == 5);
    span_list_clear(&input);
}

/* ---- how many ---- */

static void say_number(int number, uint64_t tenant)
{
    char prompt[32];
    snprintf(prompt, sizeof prompt, "%d:%d:", (int)tenant, number);
    say(prompt, "<a>", 3, tenant);
}

static bool said_number(int number, uint64_t tenant)
{
    char prompt[32];
    snprintf(prompt, sizeof prompt, "%d:%d:", (int)tenant, number);
    return said(text_of(""), prompt, "<a>", 3);
}

Test(own_tokens, the_last_ones_stay, .init = begin, .fini = end)
{
    enum { ALL = 100000, LAST = 1000 }; /* of so few there are never too many in a bucket */
    int found = 0;
    for (int i = 0; i < ALL; i++) {
        say_number(i, 1);
        cr_assert(said_number(0, 1)); /* asked for again and again it stays */
    }
    for (int i = ALL - LAST; i < ALL; i++)
        cr_expect(said_number(i, 1), "%d", i);
    for (int i = 0; i < ALL; i++)
        found += said_number(i, 1);
    cr_expect(found > 30000 && found <= 32768, "%d", found);
}

Test(own_tokens, tenants_have_equal_shares, .init = begin, .fini = end)
{
    enum { FEW = 100, MANY = 100000 }; /* as above */
    for (int i = 0; i < FEW; i++)
        say_number(i, 1);
    for (int i = 0; i < MANY; i++)
        say_number(i, 2);
    for (int i = 0; i < FEW; i++)
        cr_expect(said_number(i, 1), "%d", i);
}
