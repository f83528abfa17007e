/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/page.h"

#include "server/page/page_files.h"

#include <string.h>

/* What no request may have: scripts and styles of the page's own files alone, no frames, no forms
 * that a browser sends by itself, and connections to these origins only. */
static const char POLICY[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'; connect-src 'self'";

/* The bytes of url that are its origin. 0: it is none that the page may connect to. What it may
 * hold has no meaning of its own in the policy, which is a header. */
static size_t origin_length(const char *url)
{
    static const char NAME[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    static const char PATH[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_~%/";
    static const char ADDRESS[] = "0123456789abcdefABCDEF:.";
    size_t at = strncmp(url, "http://", 7) == 0 ? 7 : strncmp(url, "https://", 8) == 0 ? 8 : 0;
    if (!at)
        return 0;
    bool address = url[at] == '[';
    size_t host = strspn(url + at + address, address ? ADDRESS : NAME);
    at += address + host;
    if (host == 0 || (address && url[at++] != ']'))
        return 0;
    if (url[at] == ':') {
        size_t digits = strspn(url + at + 1, "0123456789");
        if (digits == 0 || digits > 5)
            return 0;
        at += 1 + digits;
    }
    size_t path = url[at] == '/' ? strspn(url + at, PATH) : 0;
    return url[at + path] == 0 ? at : 0;
}

/* The policy is a header, for which there is not much room. */
enum { MOST_COMPARED = 16, LONGEST_URL = 200 };

int page_open(struct page_texts *page, const struct names *compare, struct error *err)
{
    if (compare->count > MOST_COMPARED)
        return error_set(err, ERROR_INVALID, "--page-compare: expected at most %d servers, got %zu",
                         MOST_COMPARED, compare->count);
    strbuf_puts(&page->policy, POLICY);
    strbuf_puts(&page->config, "{\"compare\":[");
    for (size_t i = 0; i < compare->count; i++) {
        const char *url = compare->items[i];
        size_t origin = origin_length(url);
        if (!origin || strlen(url) > LONGEST_URL)
            return error_set(err, ERROR_INVALID,
                             "--page-compare: expected http://HOST:PORT, or https:, and perhaps a "
                             "path, of %d bytes at most, got \"%.200s\"",
                             LONGEST_URL, url);
        strbuf_puts(&page->policy, " ");
        strbuf_append(&page->policy, url, origin);
        strbuf_puts(&page->config, i ? "," : "");
        strbuf_json_cstring(&page->config, url);
    }
    strbuf_puts(&page->config, "]");
    strbuf_append(&page->policy, "", 1);
    return page->policy.failed || page->config.failed
               ? error_set(err, ERROR_NO_MEMORY, "out of memory for the page")
               : 0;
}

void page_clear(struct page_texts *page)
{
    strbuf_clear(&page->policy);
    strbuf_clear(&page->config);
}

static void reply(struct http_request *request, const struct page_file *file)
{
    const struct http_file out = {.content_type = file->content_type,
                                  .etag = file->etag,
                                  .policy = request->service->page.policy.data,
                                  .data = file->data,
                                  .length = file->length};
    http_reply_file(request, &out);
}

static const struct page_file *find(const char *name)
{
    for (size_t i = 0; i < num_page_files; i++)
        if (strcmp(page_files[i].name, name) == 0)
            return &page_files[i];
    return NULL;
}

void page_handle(struct http_request *request)
{
    reply(request, find("page.html"));
}

static void encode_config(struct strbuf *out, const struct service *service)
{
    const struct strbuf *begun = &service->page.config;
    strbuf_append(out, begun->data, begun->length);
    strbuf_puts(out, ",\"chat\":");
    strbuf_json_bool(out, !service->limits.token_ids_only && service->chat.template);
    strbuf_puts(out, ",\"text\":");
    strbuf_json_bool(out, !service->limits.token_ids_only);
    strbuf_puts(out, "}");
}

void page_handle_file(struct http_request *request)
{
    const struct page_file *file = find(request->parameter);
    struct api_error err = {0};
    struct strbuf config = {0};
    if (file) {
        reply(request, file);
    } else if (strcmp(request->parameter, "config.json") == 0) {
        encode_config(&config, request->service);
        http_reply_json(request, &config);
    } else {
        api_error_unknown_path(&err, request->path);
        http_reply_error(request, &err);
    }
}
