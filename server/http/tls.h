/* SPDX-License-Identifier: Apache-2.0 */
/* The server's certificate, by GnuTLS. It can be renewed while connections are open: each keeps the
 * one that it began with. */
#ifndef SERVER_HTTP_TLS_H
#define SERVER_HTTP_TLS_H

#include "lib/base/error.h"

#include <gnutls/gnutls.h>

/* TLS 1.2 and 1.3, with forward secrecy. */
#define TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-RSA"

struct tls;
struct tls_identity; /* a certificate with its key, counted */

/* Reads the files (PEM; the certificate first, then those that vouch for it) and logs what it is.
 * *out: free it with tls_free once no connection is open. */
int tls_open(struct tls **out, const char *certificate, const char *key, struct error *err);
void tls_free(struct tls *tls);
/* Reads the files again. On an error, also of a certificate that is out of date, the old one stays.
 * Any thread, one at a time. */
int tls_renew(struct tls *tls, struct error *err);

/* Gives a session, before its handshake, the certificate of now. Returns what tls_end takes back
 * after the session's end. Any thread. */
struct tls_identity *tls_begin(struct tls *tls, gnutls_session_t session);
void tls_end(struct tls_identity *identity); /* NULL is allowed */

#endif
