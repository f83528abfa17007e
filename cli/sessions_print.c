/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/sessions_print.h"

#include "api/strbuf.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

const char *sessions_print_time(double seconds, char text[SESSIONS_PRINT_TIME])
{
    const time_t whole = (time_t)floor(seconds);
    struct tm parts;
    if (gmtime_r(&whole, &parts) == NULL ||
        strftime(text, SESSIONS_PRINT_TIME, "%Y-%m-%d %H:%M:%S", &parts) == 0)
        snprintf(text, SESSIONS_PRINT_TIME, "?");
    return text;
}

/* The members of an object, without its end. */
static void write_json(struct strbuf *out, const struct shelf_session *session)
{
    strbuf_puts(out, "{\"id\":");
    strbuf_json_cstring(out, session->meta.id);
    strbuf_printf(out, ",\"position\":%lld,\"created\":%lld,\"used\":%lld,\"turn_bytes\":%lld",
                  (long long)session->count, (long long)session->meta.created,
                  (long long)session->meta.used, (long long)session->meta.turns);
    strbuf_printf(out, ",\"owner\":\"%s\",\"fingerprint\":\"%s\",\"imported\":%s,\"damage\":",
                  session->meta.owner, session->model, session->meta.space[0] ? "true" : "false");
    strbuf_json_cstring(out, session->damage);
}

static void flush(struct strbuf *out)
{
    fwrite(out->data, 1, out->length, stdout);
    strbuf_clear(out);
}

void sessions_print_begin(struct sessions_print *print)
{
    if (print->json)
        fputs("{\"data\":[", stdout);
}

void sessions_print_add(struct sessions_print *print, const struct shelf_session *session)
{
    char used[SESSIONS_PRINT_TIME];
    if (print->json) {
        struct strbuf out = {0};
        if (print->count > 0)
            strbuf_puts(&out, ",\n");
        write_json(&out, session);
        strbuf_puts(&out, "}");
        flush(&out);
    } else {
        if (print->count == 0)
            printf("%-32s %10s  %-19s  %-8s  %-8s\n", "id", "tokens", "used (UTC)", "owner",
                   "model");
        printf("%-32s %10lld  %-19s  %-8.8s  %-8.8s%s%s\n", session->meta.id,
               (long long)session->count, sessions_print_time(session->meta.used, used),
               session->meta.owner, session->model, session->damage != NULL ? "  " : "",
               session->damage != NULL ? session->damage : "");
    }
    print->count++;
    print->tokens += session->count;
    print->damaged += session->damage != NULL;
}

void sessions_print_end(struct sessions_print *print, int64_t damaged)
{
    damaged += print->damaged;
    if (print->json)
        printf("],\"tokens\":%lld,\"damaged\":%lld}\n", (long long)print->tokens,
               (long long)damaged);
    else
        printf("%lld sessions of %lld tokens, %lld damaged\n", (long long)print->count,
               (long long)print->tokens, (long long)damaged);
}

void sessions_print_one(const struct shelf_session *session, bool json)
{
    char created[SESSIONS_PRINT_TIME], used[SESSIONS_PRINT_TIME];
    if (json) {
        struct strbuf out = {0};
        write_json(&out, session);
        strbuf_puts(&out, ",\"tokens\":");
        strbuf_json_ints(&out, session->tokens,
                         session->damage != NULL ? 0 : (size_t)session->count);
        strbuf_puts(&out, "}\n");
        flush(&out);
        return;
    }
    printf("id           %s\ntokens       %lld\n", session->meta.id, (long long)session->count);
    printf("chat         %lld bytes of turns\n", (long long)session->meta.turns);
    printf("created      %s UTC\n", sessions_print_time(session->meta.created, created));
    printf("used         %s UTC\n", sessions_print_time(session->meta.used, used));
    printf("owner        %s\nmodel        %s\n", session->meta.owner, session->model);
    if (session->meta.space[0])
        printf("state        was imported: no other session shares it\n");
    if (session->damage != NULL)
        printf("damaged      %s\n", session->damage);
}
