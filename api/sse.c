/* SPDX-License-Identifier: Apache-2.0 */
#include "api/sse.h"

void sse_choice_frame(struct strbuf *buf, const struct reply_head *head,
                      const struct reply_choice *choice, enum sse_usage usage_kind,
                      const struct reply_usage *usage)
{
    strbuf_puts(buf, "data: {");
    reply_head_encode(buf, head, "text_completion");
    strbuf_puts(buf, ",\"choices\":[");
    reply_choice_encode(buf, choice);
    strbuf_puts(buf, "]");
    if (usage_kind == SSE_USAGE_NULL) {
        strbuf_puts(buf, ",\"usage\":null");
    } else if (usage_kind == SSE_USAGE_GIVEN) {
        strbuf_puts(buf, ",\"usage\":");
        reply_usage_encode(buf, usage);
    }
    strbuf_puts(buf, "}\n\n");
}

void sse_usage_frame(struct strbuf *buf, const struct reply_head *head,
                     const struct reply_usage *usage, const struct reply_timings *timings,
                     const struct session_card *session)
{
    strbuf_puts(buf, "data: {");
    reply_head_encode(buf, head, "text_completion");
    strbuf_puts(buf, ",\"choices\":[],");
    reply_account_encode(buf, usage, timings, session);
    strbuf_puts(buf, "}\n\n");
}

void sse_end(struct strbuf *buf, const struct sse_stream *stream, const struct api_error *err,
             const char *request_id)
{
    (void)stream;
    (void)request_id;
    if (err) {
        strbuf_puts(buf, "data: ");
        api_error_encode(buf, err);
        strbuf_puts(buf, "\n\n");
    }
    strbuf_puts(buf, "data: [DONE]\n\n");
}

void sse_comment(struct strbuf *buf, const struct sse_stream *stream)
{
    (void)stream;
    strbuf_puts(buf, ":\n\n");
}
