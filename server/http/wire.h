/* SPDX-License-Identifier: Apache-2.0 */
/* Where requests begin and end on a connection (RFC 9112), read strictly. libmicrohttpd reads what
 * is malformed its own way (0.9.75 joins a folded line to a header's name, ends a head at an empty
 * name, takes LF for CR LF). A proxy in front could see another request there than this server
 * does. So bytes pass here first, and a malformed request never gets to libmicrohttpd whole. */
#ifndef SERVER_HTTP_WIRE_H
#define SERVER_HTTP_WIRE_H

#include "api/errors.h"

#include <stdint.h>

enum { WIRE_VALUE_SIZE = 32 };

/* One connection. All zero: nothing has come yet. */
struct wire {
    int state;                     /* enum wire_state */
    bool trailer;                  /* the lines follow a chunked body */
    int minor;                     /* of its version: HTTP/1.minor */
    int matched;                   /* bytes of "HTTP/1." */
    int hosts, lengths, encodings; /* headers */
    bool chunked;
    int name_length, value_length, blanks; /* of this line; blanks: at the end of its value */
    char name[WIRE_VALUE_SIZE], value[WIRE_VALUE_SIZE]; /* their beginnings */
    int digits;                                         /* of a chunk's size */
    uint64_t length;                                    /* of the body */
    uint64_t ended;                                     /* requests that have come whole */
    uint64_t left; /* bytes of the body or the chunk that are still to come */
};

/* Reads bytes [length], and moves blanks at the end of a header's value to its front, as
 * libmicrohttpd 0.9.75 takes them for a part of it. Returns how many bytes may be passed on. If
 * that is fewer than length, *err is set: there, or before these bytes, a request begins that is
 * malformed. Nothing that follows it can be trusted. */
size_t wire_read(struct wire *wire, char *bytes, size_t length, struct api_error *err);

#endif
