/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a response while it is made, for others than the client that asked for it: as it is by now,
 * or as the events of its stream, from any of them on. A response that has a reader runs on when
 * its client leaves.
 *
 * The engine thread copies what was put out; each reader makes events of that on its own, so the
 * same ones as the response's own stream, and as what is kept of it tells later. */
#ifndef SERVER_ENDPOINTS_RESPONSE_READER_H
#define SERVER_ENDPOINTS_RESPONSE_READER_H

#include "server/endpoints/completion_stream.h"
#include "server/endpoints/session_task.h"

struct response_reader {
    struct session_task task;
    struct completion *source;       /* held; NULL: it reads none */
    struct completion_stream stream; /* its own, of the source's job */
    bool joined;
    int64_t after; /* events up to this number are not told */
    size_t put;    /* pieces that were copied */
    /* Under the lock of the task's ticket. */
    struct outbox copied;
    bool last;    /* nothing more will be copied */
    bool looking; /* the engine thread looks for more */
    bool lost;    /* there is no memory for it, or the server ends */
};

/* Engine thread: finds the one that the task names, whose owner has that API key, for what was
 * asked of it. False: it is soon kept. */
bool response_reader_find(struct response_reader *reader, int owner);
/* Engine thread: finds the one that the task names, whose owner has that API key. False: it makes
 * nothing new any more, and is soon kept. */
bool response_reader_open(struct response_reader *reader, int owner, bool streams);
/* Worker: the object as it is by now, to the task's reply. */
void response_reader_encode(struct response_reader *reader);
/* HTTP thread: replies with a stream. */
void response_reader_answer(struct http_request *request);
/* For the task's destroy. */
void response_reader_clear(struct response_reader *reader);

#endif
