/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings in replies: bounds, hostile names, and what each reader of a request adds. */
#include "api/reply_warnings.h"

#include "api/completion.h"
#include "api/sessions.h"
#include "api/tokenizer.h"
#include "lib/base/warnings.h"
#include "lib/text/unicode.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <string.h>

static struct reply_warnings warnings;
static const char *const served[] = {"tiny"};
static const struct completion_limits limits = {
    .models = served, .num_models = 1, .vocab_size = 300, .warnings = &warnings};

/* The member as JSON; NULL: there is none. */
static json_t *member(void)
{
    struct strbuf buf = {0};
    strbuf_puts(&buf, "{\"a\":1");
    reply_warnings_encode(&buf, &warnings);
    strbuf_puts(&buf, "}");
    cr_assert_not(buf.failed);
    json_t *reply = json_loadb(buf.data, buf.length, 0, NULL);
    cr_assert_not_null(reply, "%.*s", (int)buf.length, buf.data);
    strbuf_clear(&buf);
    json_t *list = json_incref(json_object_get(reply, "warnings"));
    json_decref(reply);
    return list;
}

Test(reply_warnings, none_are_no_member_and_no_header)
{
    char header[REPLY_WARNINGS_HEADER_SIZE];
    reply_warnings_header(header, &warnings);
    cr_expect_str_eq(header, "");
    cr_expect_null(member());
    cr_expect_null(reply_warnings_first(NULL));
    reply_warnings_add(NULL, WARNING_FIELD, "nobody is told");
    struct strbuf buf = {0};
    reply_warnings_encode(&buf, NULL);
    cr_expect_eq(buf.length, 0);
}

Test(reply_warnings, both_forms)
{
    char header[REPLY_WARNINGS_HEADER_SIZE];
    reply_warnings_add(&warnings, WARNING_FIELD, "größe: %d", 5);
    reply_warnings_add(&warnings, WARNING_SCHEMA, "b \"\\: world 世界");
    reply_warnings_header(header, &warnings);
    cr_expect_str_eq(header, "gr??e: 5; b \"\\: world ??");
    json_t *list = member();
    cr_assert_eq(json_array_size(list), 2);
    cr_expect_str_eq(json_string_value(json_array_get(list, 0)), "größe: 5");
    cr_expect_str_eq(json_string_value(json_array_get(list, 1)), "b \"\\: world 世界");
    json_decref(list);
    cr_expect_str_eq(reply_warnings_first(&warnings), "größe: 5");
    cr_expect(warnings.counts[WARNING_FIELD] == 1 && warnings.counts[WARNING_SCHEMA] == 1);
    reply_warnings_clear(&warnings);
    cr_expect_null(reply_warnings_first(&warnings));
    cr_expect_eq(warnings.counts[WARNING_FIELD], 0);
}

/* Whatever is added, both forms keep to their bounds. */
Test(reply_warnings, too_much_and_hostile)
{
    char header[REPLY_WARNINGS_HEADER_SIZE], *huge = malloc(8 << 20);
    cr_assert_not_null(huge);
    for (size_t i = 0; i + 1 < 8 << 20; i++)
        huge[i] = (char)(1 + i % 255);
    huge[(8 << 20) - 1] = 0;
    for (int i = 0; i < 1000; i++) {
        const char *name = i < 3 ? huge : huge + (8 << 20) - 600;
        reply_warnings_add(&warnings, WARNING_FIELD, "%d\r\nSet-Cookie: a=b\r\n\r\n%s", i, name);
        reply_warnings_header(header, &warnings);
        cr_assert_lt(strlen(header), sizeof header);
        for (const char *c = header; *c; c++)
            cr_assert(*c >= ' ' && *c <= '~', "%d: %d", i, *c);
    }
    cr_expect_str_eq(header + strlen(header) - 5, "; ...");
    free(huge);
    cr_expect_eq(warnings.counts[WARNING_FIELD], 1000);
    json_t *list = member();
    cr_assert_eq(json_array_size(list), WARNINGS_MOST + 1);
    for (size_t i = 0; i <= WARNINGS_MOST; i++) {
        const json_t *text = json_array_get(list, i);
        size_t length = json_string_length(text);
        cr_expect_lt(length, WARNING_BYTES);
        cr_expect_eq(utf8_valid_length(json_string_value(text), length), length);
    }
    cr_expect(strstr(json_string_value(json_array_get(list, WARNINGS_MOST)), "more"));
    json_decref(list);
    reply_warnings_clear(&warnings);
}

/* A header is cut behind a whole sentence, at each length of the one that still fits. */
Test(reply_warnings, a_header_is_cut_between_sentences)
{
    for (int length = 1; length < WARNING_BYTES; length++) {
        char header[REPLY_WARNINGS_HEADER_SIZE], *end;
        for (int i = 0; i < 3; i++)
            reply_warnings_add(&warnings, WARNING_FIELD, "%0*d", i < 2 ? 380 : length, 7);
        reply_warnings_header(header, &warnings);
        cr_assert(end = strrchr(header, ';'));
        bool whole = strspn(end + 2, "07") == strlen(end + 2);
        cr_expect(whole ? strlen(end + 2) == (size_t)length : strcmp(end, "; ...") == 0, "%d",
                  length);
        reply_warnings_clear(&warnings);
    }
}

static void expect_one(const char *what)
{
    json_t *list = member();
    cr_assert_eq(json_array_size(list), 1, "%s", what);
    cr_expect_str_eq(json_string_value(json_array_get(list, 0)),
                     "oops: no field that is known here; it is ignored");
    json_decref(list);
    reply_warnings_clear(&warnings);
}

Test(reply_warnings, every_reader_warns_of_fields)
{
    static const char COMPLETION[] = "{\"prompt\":\"x\",\"oops\":[1],\"max_tokens\":1,\"no\":null}",
                      TOKENIZE[] = "{\"prompt\":\"x\",\"oops\":1,\"add_special_tokens\":false}",
                      DETOKENIZE[] = "{\"tokens\":[1],\"oops\":{}}",
                      FORK[] = "{\"id\":\"copy\",\"oops\":false}",
                      REWIND[] = "{\"position\":12,\"oops\":\"\"}";
    struct completion_request completion;
    struct tokenize_request tokenize;
    struct detokenize_request detokenize;
    char id[129];
    int64_t position;
    cr_assert_eq(completion_parse(&completion, COMPLETION, strlen(COMPLETION), &limits, NULL), 0);
    completion_request_clear(&completion);
    expect_one("completion");
    cr_assert_eq(tokenize_parse(&tokenize, TOKENIZE, strlen(TOKENIZE), true, &limits, NULL), 0);
    tokenize_request_clear(&tokenize);
    expect_one("tokenize");
    cr_assert_eq(detokenize_parse(&detokenize, DETOKENIZE, strlen(DETOKENIZE), &limits, NULL), 0);
    detokenize_request_clear(&detokenize);
    expect_one("detokenize");
    cr_assert_eq(fork_parse(FORK, strlen(FORK), id, sizeof id, &warnings, NULL), 0);
    expect_one("fork");
    cr_assert_eq(rewind_parse(REWIND, strlen(REWIND), &position, &warnings, NULL), 0);
    expect_one("rewind");
}
