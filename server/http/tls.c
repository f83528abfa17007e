/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/tls.h"

#include "lib/base/file.h"
#include "server/log.h"

#include <gnutls/x509.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_FILE_BYTES = 1 << 20 };

struct tls_identity {
    atomic_int users;
    gnutls_certificate_credentials_t credentials;
    char subject[256];
    time_t from, until; /* when the certificate is valid */
};

struct tls {
    char *certificate, *key; /* paths */
    pthread_mutex_t lock;
    struct tls_identity *current;
};

void tls_end(struct tls_identity *identity)
{
    if (!identity || atomic_fetch_sub(&identity->users, 1) > 1)
        return;
    if (identity->credentials)
        gnutls_certificate_free_credentials(identity->credentials);
    free(identity);
}

struct tls_identity *tls_begin(struct tls *tls, gnutls_session_t session)
{
    pthread_mutex_lock(&tls->lock);
    struct tls_identity *identity = tls->current;
    atomic_fetch_add(&identity->users, 1);
    pthread_mutex_unlock(&tls->lock);
    gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, identity->credentials);
    return identity;
}

static int failed(struct error *err, const char *option, const char *path, int code)
{
    return error_set(err, ERROR_INVALID, "%s: %s: %s", option, path, gnutls_strerror(code));
}

/* What people know a certificate by: who it is for, and how long. */
static int describe(struct tls_identity *identity, const struct tls *tls, struct error *err)
{
    gnutls_x509_crt_t *chain = NULL;
    unsigned length = 0;
    size_t size = sizeof identity->subject;
    int code = gnutls_certificate_get_x509_crt(identity->credentials, 0, &chain, &length);
    if (code || length == 0)
        return failed(err, "--tls-cert", tls->certificate, code);
    if (gnutls_x509_crt_get_subject_alt_name(chain[0], 0, identity->subject, &size, NULL) !=
        GNUTLS_SAN_DNSNAME) { /* an address is not text */
        size = sizeof identity->subject;
        if (gnutls_x509_crt_get_dn(chain[0], identity->subject, &size) < 0)
            size = 0;
    }
    identity->subject[size < sizeof identity->subject ? size : sizeof identity->subject - 1] = 0;
    identity->from = gnutls_x509_crt_get_activation_time(chain[0]);
    identity->until = gnutls_x509_crt_get_expiration_time(chain[0]);
    for (unsigned i = 0; i < length; i++)
        gnutls_x509_crt_deinit(chain[i]);
    gnutls_free(chain);
    return 0;
}

static int load(struct tls_identity *identity, const struct tls *tls, struct error *err)
{
    char *certificate = NULL, *key = NULL;
    size_t certificate_size = 0, key_size = 0;
    int code = gnutls_certificate_allocate_credentials(&identity->credentials), result = -1;
    if (code) {
        failed(err, "--tls-cert", tls->certificate, code);
    } else if (file_read(tls->certificate, MAX_FILE_BYTES, &certificate, &certificate_size, err)) {
        error_prefix(err, "--tls-cert");
    } else if (file_read(tls->key, MAX_FILE_BYTES, &key, &key_size, err)) {
        error_prefix(err, "--tls-key");
    } else {
        gnutls_datum_t of_certificate = {(unsigned char *)certificate, (unsigned)certificate_size};
        gnutls_datum_t of_key = {(unsigned char *)key, (unsigned)key_size};
        code = gnutls_certificate_set_x509_key_mem(identity->credentials, &of_certificate, &of_key,
                                                   GNUTLS_X509_FMT_PEM);
        if (code < 0)
            error_set(err, ERROR_INVALID, "--tls-cert %s, --tls-key %s: %s", tls->certificate,
                      tls->key, gnutls_strerror(code));
        else
            result = describe(identity, tls, err);
    }
    if (key)
        explicit_bzero(key, key_size);
    free(key);
    free(certificate);
    return result;
}

static int read_identity(struct tls_identity **out, const struct tls *tls, struct error *err)
{
    struct tls_identity *identity = calloc(1, sizeof *identity);
    if (!identity)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a certificate");
    atomic_init(&identity->users, 1);
    if (load(identity, tls, err)) {
        tls_end(identity);
        return -1;
    }
    *out = identity;
    return 0;
}

static void day(time_t when, char text[16])
{
    struct tm parts;
    if (!gmtime_r(&when, &parts) || !strftime(text, 16, "%Y-%m-%d", &parts))
        snprintf(text, 16, "?");
}

static void report(const struct tls_identity *identity, bool valid)
{
    char from[16], until[16];
    day(identity->from, from);
    day(identity->until, until);
    log_message(valid ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, "certificate of %s, valid from %s to %s%s",
                identity->subject, from, until, valid ? "" : ": clients will refuse it now");
}

static bool is_valid(const struct tls_identity *identity)
{
    time_t now = time(NULL);
    return identity->from <= now && now < identity->until;
}

int tls_open(struct tls **out, const char *certificate, const char *key, struct error *err)
{
    struct tls *tls = calloc(1, sizeof *tls);
    if (!tls)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a certificate");
    pthread_mutex_init(&tls->lock, NULL);
    tls->certificate = strdup(certificate);
    tls->key = strdup(key);
    if (!tls->certificate || !tls->key || read_identity(&tls->current, tls, err)) {
        error_set(err, ERROR_NO_MEMORY, "out of memory for a certificate");
        tls_free(tls);
        return -1;
    }
    report(tls->current, is_valid(tls->current));
    *out = tls;
    return 0;
}

void tls_free(struct tls *tls)
{
    if (!tls)
        return;
    tls_end(tls->current);
    pthread_mutex_destroy(&tls->lock);
    free(tls->certificate);
    free(tls->key);
    free(tls);
}

int tls_renew(struct tls *tls, struct error *err)
{
    struct tls_identity *fresh = NULL;
    if (read_identity(&fresh, tls, err))
        return -1;
    bool valid = is_valid(fresh);
    if (!valid && is_valid(tls->current)) {
        char until[16];
        day(fresh->until, until);
        tls_end(fresh);
        return error_set(err, ERROR_INVALID, "--tls-cert %s: not valid now (until %s)",
                         tls->certificate, until);
    }
    pthread_mutex_lock(&tls->lock);
    struct tls_identity *old = tls->current;
    tls->current = fresh;
    pthread_mutex_unlock(&tls->lock);
    report(fresh, valid);
    tls_end(old);
    return 0;
}
