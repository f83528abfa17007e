/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/stream_reply.h"

#include <string.h>

/* The watcher looks every 200 ms (http/watcher.h); clients and proxies count on something every
 * 10 s. */
static const double SILENT_SECONDS = 8, BEGIN_SECONDS = 1;

void stream_reply_begin(struct http_request *request, bool soon, MHD_ContentReaderCallback read)
{
    ticket_due(request->ticket, soon ? BEGIN_SECONDS : SILENT_SECONDS);
    http_reply_stream(request, read);
}

/* While older connections idle, libmicrohttpd 0.9.75 forgets one whose reader ends with an error,
 * until those time out. So the reader ends well, on a socket that is shut down. */
static ssize_t give_up(const struct http_request *request)
{
    http_shutdown(request);
    return MHD_CONTENT_READER_END_OF_STREAM;
}

ssize_t stream_reply_read(struct http_request *request, struct completion_stream *stream,
                          stream_reply_refill *refill, char *buffer, size_t size)
{
    if (ticket_gone(request->ticket))
        return give_up(request);
    while (stream->sent == stream->frames.length) { /* what is new may make no frame */
        if (stream->ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (!refill(request))
            return request->hang_up ? give_up(request) : 0;
        if (stream->frames.failed)
            return give_up(request);
    }
    size_t left = stream->frames.length - stream->sent;
    size_t count = left < size ? left : size;
    memcpy(buffer, stream->frames.data + stream->sent, count);
    stream->sent += count;
    ticket_due(request->ticket, SILENT_SECONDS);
    return (ssize_t)count;
}
