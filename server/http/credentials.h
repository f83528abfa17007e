/* SPDX-License-Identifier: Apache-2.0 */
/* What the server knows clients by, and they it: API keys, and the certificate of TLS. Their files
 * are read at the start, and again when asked, by a thread of its own: a disk may take its time.
 * What cannot be read, or is wrong, leaves the old as it was, and is logged. */
#ifndef SERVER_HTTP_CREDENTIALS_H
#define SERVER_HTTP_CREDENTIALS_H

#include "server/http/auth.h"
#include "server/http/tls.h"

struct credentials;

struct credential_options {
    const char *const *api_keys; /* [num_api_keys] */
    size_t num_api_keys;
    const char *api_key_file;              /* NULL: none */
    const char *tls_certificate, *tls_key; /* both, or NULL */
};

int credentials_open(struct credentials **out, const struct credential_options *options,
                     struct error *err);
/* After whoever uses them. A thread that a disk holds up is left to itself. */
void credentials_close(struct credentials *credentials);

/* Any thread; returns at once. */
void credentials_reload(struct credentials *credentials);

struct auth *credentials_auth(struct credentials *credentials);
struct tls *credentials_tls(struct credentials *credentials); /* NULL: no TLS */

/* Calls `name` for each key, in the order of their indices, now and for new ones before they are
 * let in; for "" if there are none. Afterwards nobody has their texts. Not called any more after
 * credentials_close. */
typedef int credentials_namer(void *context, const char *key, struct error *err);
int credentials_name(struct credentials *credentials, credentials_namer *name, void *context,
                     struct error *err);

#endif
