/* SPDX-License-Identifier: Apache-2.0 */
/* TLS to a store (rediss://): GnuTLS over the socket of a connection. The store's certificate has
 * to be that of the host that was asked for, by a CA that is trusted; nothing is sent before that
 * is known. All waits have an end. Errors are ERROR_IO, without the name of the place. */
#ifndef SERVER_STORE_REDIS_TLS_H
#define SERVER_STORE_REDIS_TLS_H

#include "server/store/store_op.h"

#include <sys/types.h>

/* Whom to believe, and who we are: read once, shared by all connections of a place. */
struct redis_trust;
/* On an error it names the option. */
int redis_trust_open(struct redis_trust **out, const struct store_tls *files, struct error *err);
void redis_trust_close(struct redis_trust *trust); /* NULL is allowed */

struct redis_tls;
/* Greets the store behind the socket, in timeout_s at most. The socket does not block from then on;
 * it, `trust` and `late` are borrowed. *late becomes true when no answer came in time, now or
 * later. */
int redis_tls_open(struct redis_tls **out, const struct redis_trust *trust, int socket,
                   const char *host, double timeout_s, bool *late, struct error *err);
void redis_tls_close(struct redis_tls *tls); /* NULL is allowed */

/* Keeps bytes for the next flush. -1: no memory. */
int redis_tls_put(struct redis_tls *tls, const char *bytes, size_t size);
/* Sends them; timeout_s without progress is an error. */
int redis_tls_flush(struct redis_tls *tls, double timeout_s, struct error *err);
/* What has come: at least a byte, at most size; < 0: none by that moment (clock_seconds()), or an
 * error. */
ssize_t redis_tls_read(struct redis_tls *tls, char *out, size_t size, double until,
                       struct error *err);

#endif
