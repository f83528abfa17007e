/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the frames of a stream as they are made. No stream is silent for ten seconds: what waits is
 * probed before (ticket_due), and says something. */
#ifndef SERVER_ENDPOINTS_STREAM_REPLY_H
#define SERVER_ENDPOINTS_STREAM_REPLY_H

#include "server/endpoints/completion_stream.h"
#include "server/http/http.h"

/* soon: it says something a second from now, whatever comes. read: calls stream_reply_read. */
void stream_reply_begin(struct http_request *request, bool soon, MHD_ContentReaderCallback read);

/* Makes more frames. False: there is nothing; the connection is suspended, or given up. */
typedef bool stream_reply_refill(struct http_request *request);

/* For MHD_ContentReaderCallback: fills the buffer with frames of the stream. */
ssize_t stream_reply_read(struct http_request *request, struct completion_stream *stream,
                          stream_reply_refill *refill, char *buffer, size_t size);

#endif
