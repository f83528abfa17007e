/* SPDX-License-Identifier: Apache-2.0 */
/* Where requests end (RFC 9112): the same however the bytes come in. */
#include "server/http/wire.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define HEAD "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
#define GET "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

struct outcome {
    char bytes[512]; /* that are passed on */
    size_t passed;   /* how many */
    uint64_t ended;
    struct api_error err;
};

/* Reads text [length] in pieces that end at each of cuts, from left to right. */
static struct outcome read_cut(const char *text, size_t length, const size_t *cuts, int num_cuts)
{
    struct wire wire = {0};
    struct outcome outcome = {0};
    cr_assert(length <= sizeof outcome.bytes);
    size_t from = 0;
    for (int i = 0; i <= num_cuts && outcome.err.code == API_OK; i++) {
        size_t to = i < num_cuts ? cuts[i] : length;
        char *piece = malloc(to - from + 1); /* of its own, so that nobody reads past it unseen */
        cr_assert_not_null(piece);
        memcpy(piece, text + from, to - from);
        size_t good = wire_read(&wire, piece, to - from, &outcome.err);
        memcpy(outcome.bytes + outcome.passed, piece, good);
        outcome.passed += good;
        free(piece);
        from = to;
    }
    outcome.ended = wire.ended;
    return outcome;
}

static void expect(const char *text, size_t length, enum api_code code, uint64_t ended)
{
    size_t *all = malloc((length + 1) * sizeof *all);
    cr_assert_not_null(all);
    for (size_t i = 0; i < length; i++)
        all[i] = i;
    for (size_t cut = 0; cut <= length; cut++) {
        struct outcome outcome = read_cut(text, length, &cut, 1);
        cr_expect_eq(outcome.err.code, code, "%s, cut at %zu: %d, expected %d: %s", text, cut,
                     outcome.err.code, code, outcome.err.message);
        cr_expect_eq(outcome.ended, ended, "%s, cut at %zu: %d requests", text, cut,
                     (int)outcome.ended);
    }
    struct outcome outcome = read_cut(text, length, all, (int)length);
    cr_expect_eq(outcome.err.code, code, "%s, byte by byte: %s", text, outcome.err.message);
    cr_expect_eq(outcome.ended, ended, "%s, byte by byte", text);
    free(all);
}

static void expect_text(const char *text, enum api_code code, uint64_t ended)
{
    expect(text, strlen(text), code, ended);
}

Test(wire, requests_end)
{
    static const struct {
        const char *text;
        uint64_t ended;
    } cases[] = {
        {"", 0},
        {"\r\n\r\n", 0},
        {GET, 1},
        {"\r\n" GET "\r\n" GET, 2},
        {"GET / HTTP/1.0\r\n\r\n", 1},
        {HEAD "Content-Length: 5\r\n\r\n12345" GET, 2},
        {HEAD "content-length:0005\r\n\r\n12345" GET, 2},
        {HEAD "Content-Length: 0\r\n\r\n" GET, 2},
        {HEAD "Content-Length: 5\r\n\r\n1234", 0},
        {HEAD
         "Transfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n0\r\n\r\n" GET,
         2},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n000\r\nTrailer: Content-Length\r\n"
              "Content-Length: 7\r\n\r\n" GET,
         2},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n2\r\n\r\n\r\n0\r\n\r\n", 1},
        {HEAD "X-Long-Name-That-Is-Longer-Than-What-Is-Kept-Of-It: "
              "and a value that is longer, too, \xc3\xa9\t!\r\nX:\r\nY: \t\r\n\r\n" GET,
         2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_text(cases[i].text, API_OK, cases[i].ended);
}

Test(wire, malformed_requests)
{
    static const struct {
        const char *text;
        enum api_code code;
        uint64_t ended;
    } cases[] = {
        {"GET /\r\n", API_MALFORMED, 0},
        {"GET / HTTP/1.2\r\n", API_MALFORMED, 0},
        {"GET / HTTP/1.1 \r\n", API_MALFORMED, 0},
        {"GET / HTTP/1.11\r\n", API_MALFORMED, 0},
        {"GET  / HTTP/1.1\r\n", API_MALFORMED, 0},
        {"GET / HTTP/1.1\n", API_MALFORMED, 0},
        {"GET\t/ HTTP/1.1\r\n", API_MALFORMED, 0},
        {"\x16\x03\x01", API_MALFORMED, 0},
        {"\n", API_MALFORMED, 0},
        {"\r\r", API_MALFORMED, 0},
        {"GET / HTTP/1.1\r\n\r\n", API_MALFORMED, 0}, /* no Host */
        {"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", API_MALFORMED, 0},
        {GET HEAD ": x\r\n", API_MALFORMED, 1},
        {HEAD "X : x\r\n", API_MALFORMED, 0},
        {HEAD " folded\r\n", API_MALFORMED, 0},
        {HEAD "X: a\n\r\n", API_MALFORMED, 0},
        {HEAD "X: a\x7f\r\n", API_MALFORMED, 0},
        {HEAD "no colon\r\n", API_MALFORMED, 0},
        {HEAD "Content-Length:\r\n", API_MALFORMED, 0},
        {HEAD "Content-Length: -1\r\n", API_MALFORMED, 0},
        {HEAD "Content-Length: 1 1\r\n", API_MALFORMED, 0},
        {HEAD "Content-Length: 18446744073709551616\r\n", API_MALFORMED, 0},
        {HEAD "Content-Length: 00000000000000000000000000000000000001\r\n", API_MALFORMED, 0},
        {HEAD "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", API_MALFORMED, 0},
        {HEAD "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", API_MALFORMED, 0},
        {HEAD "Transfer-Encoding: gzip\r\n", API_NOT_IMPLEMENTED, 0},
        {HEAD "Transfer-Encoding: chunkedx\r\n", API_NOT_IMPLEMENTED, 0},
        {HEAD "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", API_MALFORMED, 0},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", API_MALFORMED, 0},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n\r\n", API_MALFORMED, 0},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n", API_MALFORMED, 0},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\n", API_MALFORMED, 0},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd", API_MALFORMED, 0},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n3;a\nb\r\n", API_MALFORMED, 0},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", API_MALFORMED, 0},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n0\r\nX : y\r\n\r\n", API_MALFORMED, 0},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" GET "\tGET", API_MALFORMED, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_text(cases[i].text, cases[i].code, cases[i].ended);
    static const char nul[] = HEAD "Content-Length: 0\0001\r\n\r\n";
    expect(nul, sizeof nul - 1, API_MALFORMED, 0);
}

/* What comes before a malformed request is passed on, and of it what came before it was seen to be
 * malformed. */
Test(wire, what_is_passed_on)
{
    static const char text[] =
        GET "\r\n" HEAD "Content-Length: 3\r\n\r\nabc" HEAD "X: a\r\n b\r\n\r\n";
    size_t good = strlen(GET "\r\n" HEAD "Content-Length: 3\r\n\r\nabc");
    size_t seen = good + strlen(HEAD "X: a\r\n"); /* the blank there */
    for (size_t cut = 0; cut < sizeof text; cut++) {
        struct outcome outcome = read_cut(text, sizeof text - 1, &cut, 1);
        cr_expect_eq(outcome.passed, cut > good && cut <= seen ? cut : good, "cut at %zu: %zu", cut,
                     outcome.passed);
        cr_expect(memcmp(outcome.bytes, text, outcome.passed) == 0, "cut at %zu", cut);
        cr_expect_eq(outcome.ended, 2);
        cr_expect_eq(outcome.err.code, API_MALFORMED);
    }
}

Test(wire, blanks_at_the_end_of_a_value_go_to_its_front)
{
    char bytes[] = HEAD "Content-Length: 12 \t \r\nX: a b \r\nY:  \r\nZ:c \r\n\r\n";
    static const char moved[] = HEAD "Content-Length:    12\r\nX:  a b\r\nY:  \r\nZ: c\r\n\r\n";
    struct wire wire = {0};
    struct api_error err = {0};
    cr_expect_eq(wire_read(&wire, bytes, strlen(bytes), &err), strlen(bytes), "%s", err.message);
    cr_expect_str_eq(bytes, moved);
    cr_expect_eq(wire.left, 12);
    cr_expect_eq(err.code, API_OK);
}
