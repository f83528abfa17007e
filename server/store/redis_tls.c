/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_tls.h"

#include "lib/base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char PRIORITIES[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-RSA";

struct redis_trust {
    gnutls_certificate_credentials_t credentials;
    bool ours; /* a certificate of ours is among them */
};

struct redis_tls {
    gnutls_session_t session;
    int socket;
    char *out; /* [capacity], of which `held` are to be sent */
    size_t held, capacity;
    bool *late; /* the connection's */
    bool greeted;
    bool refusable; /* nothing has come yet, and it has seen no certificate of ours */
};

/* ---- certificates ---- */

static int failed(const char *option, const char *path, int code, struct error *err)
{
    return error_set(err, ERROR_INVALID, "%s: %s: %s", option, path, gnutls_strerror(code));
}

static int read_files(struct redis_trust *trust, const struct store_tls *files, struct error *err)
{
    if (!files->certificate != !files->key)
        return error_set(err, ERROR_INVALID, "--store-cert and --store-key: expected both, got %s",
                         files->key != NULL ? "--store-key alone" : "--store-cert alone");
    int code = gnutls_certificate_allocate_credentials(&trust->credentials);
    if (code != 0)
        return error_set(err, ERROR_NO_MEMORY, "no memory for certificates");
    code = files->ca != NULL ? gnutls_certificate_set_x509_trust_file(trust->credentials, files->ca,
                                                                      GNUTLS_X509_FMT_PEM)
                             : gnutls_certificate_set_x509_system_trust(trust->credentials);
    if (code == 0)
        code = GNUTLS_E_NO_CERTIFICATE_FOUND;
    if (code < 0)
        return files->ca != NULL
                   ? failed("--store-ca", files->ca, code, err)
                   : error_set(err, ERROR_INVALID,
                               "the system's list of CAs cannot be read (%s): give the store's by "
                               "--store-ca",
                               gnutls_strerror(code));
    trust->ours = files->certificate != NULL;
    if (!trust->ours)
        return 0;
    code = gnutls_certificate_set_x509_key_file(trust->credentials, files->certificate, files->key,
                                                GNUTLS_X509_FMT_PEM);
    return code < 0 ? error_set(err, ERROR_INVALID, "--store-cert %s, --store-key %s: %s",
                                files->certificate, files->key, gnutls_strerror(code))
                    : 0;
}

int redis_trust_open(struct redis_trust **out, const struct store_tls *files, struct error *err)
{
    struct redis_trust *trust = calloc(1, sizeof *trust);
    if (trust == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for certificates");
    if (read_files(trust, files, err) != 0) {
        redis_trust_close(trust);
        return -1;
    }
    *out = trust;
    return 0;
}

void redis_trust_close(struct redis_trust *trust)
{
    if (trust != NULL && trust->credentials != NULL)
        gnutls_certificate_free_credentials(trust->credentials);
    free(trust);
}

/* ---- waiting ---- */

/* With TLS 1.3 it learns only after the greeting that we have no certificate; what it says of that
 * may be lost, since it closes with bytes of ours unread. */
static int hung_up(const struct redis_tls *tls, struct error *err)
{
    return error_set(err, ERROR_IO, "the store closed the connection%s",
                     tls->refusable ? "; it may want a certificate (--store-cert)" : "");
}

static int trouble(const struct redis_tls *tls, int code, struct error *err)
{
    if (code == GNUTLS_E_FATAL_ALERT_RECEIVED)
        return error_set(err, ERROR_IO, "TLS: the store refused: it said \"%s\"",
                         gnutls_alert_get_name(gnutls_alert_get(tls->session)));
    if (code == GNUTLS_E_PREMATURE_TERMINATION || code == GNUTLS_E_PULL_ERROR)
        return hung_up(tls, err);
    return error_set(err, ERROR_IO, "TLS: %s", gnutls_strerror(code));
}

/* After a call that could not go on: until it can, or until that moment. 0: it is to be called
 * again. */
static int await(const struct redis_tls *tls, int code, double until, struct error *err)
{
    if (gnutls_error_is_fatal(code) != 0 || code == GNUTLS_E_REHANDSHAKE)
        return trouble(tls, code, err);
    double left = until - clock_seconds();
    bool writes = gnutls_record_get_direction(tls->session) == 1;
    struct pollfd ready = {.fd = tls->socket, .events = writes ? POLLOUT : POLLIN};
    int count = left > 0 ? 1 : 0;
    if (count > 0 && code == GNUTLS_E_AGAIN)
        count = poll(&ready, 1, (int)ceil(left * 1e3));
    if (count == 0) {
        *tls->late = true;
        return error_set(err, ERROR_IO, "no answer in time%s",
                         tls->greeted ? "" : " to the greeting of TLS");
    }
    if (count < 0 && errno != EINTR)
        return error_set(err, ERROR_IO, "cannot wait for the store: %s", strerror(errno));
    return 0;
}

/* ---- the greeting ---- */

/* Why the certificate is refused, in GnuTLS's words. */
static int distrust(const struct redis_tls *tls, const char *host, struct error *err)
{
    gnutls_datum_t text = {0};
    unsigned status = gnutls_session_get_verify_cert_status(tls->session);
    gnutls_certificate_type_t type =
        gnutls_certificate_type_get2(tls->session, GNUTLS_CTYPE_SERVER);
    int code = gnutls_certificate_verification_status_print(status, type, &text, 0);
    error_set(err, ERROR_IO, "TLS: its certificate is not accepted for %s: %s", host,
              code == 0 ? (const char *)text.data : gnutls_strerror(code));
    gnutls_free(text.data);
    return -1;
}

static bool is_address(const char *host)
{
    unsigned char bytes[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
}

static int prepare(struct redis_tls *tls, const struct redis_trust *trust, const char *host,
                   struct error *err)
{
    int code = gnutls_init(&tls->session, GNUTLS_CLIENT | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL);
    if (code == 0)
        code = gnutls_priority_set_direct(tls->session, PRIORITIES, NULL);
    if (code == 0)
        code = gnutls_credentials_set(tls->session, GNUTLS_CRD_CERTIFICATE, trust->credentials);
    if (code == 0 && !is_address(host))
        code = gnutls_server_name_set(tls->session, GNUTLS_NAME_DNS, host, strlen(host));
    if (code != 0)
        return error_set(err, ERROR_IO, "TLS: %s", gnutls_strerror(code));
    gnutls_session_set_verify_cert(tls->session, host, 0);
    gnutls_transport_set_int(tls->session, tls->socket);
    int flags = fcntl(tls->socket, F_GETFL);
    return flags >= 0 && fcntl(tls->socket, F_SETFL, flags | O_NONBLOCK) == 0
               ? 0
               : error_set(err, ERROR_IO, "TLS: %s", strerror(errno));
}

static int greet(struct redis_tls *tls, const char *host, bool ours, double until,
                 struct error *err)
{
    int code;
    while ((code = gnutls_handshake(tls->session)) < 0) {
        if (code == GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR)
            return distrust(tls, host, err);
        if (await(tls, code, until, err) != 0)
            return -1;
    }
    tls->greeted = true;
    tls->refusable = !ours;
    return 0;
}

int redis_tls_open(struct redis_tls **out, const struct redis_trust *trust, int socket,
                   const char *host, double timeout_s, bool *late, struct error *err)
{
    if (trust == NULL)
        return error_set(err, ERROR_INTERNAL, "TLS without certificates");
    struct redis_tls *tls = calloc(1, sizeof *tls);
    if (tls == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a connection");
    tls->socket = socket;
    tls->late = late;
    if (prepare(tls, trust, host, err) != 0 ||
        greet(tls, host, trust->ours, clock_seconds() + timeout_s, err) != 0) {
        redis_tls_close(tls);
        return -1;
    }
    *out = tls;
    return 0;
}

void redis_tls_close(struct redis_tls *tls)
{
    if (tls == NULL)
        return;
    if (tls->greeted)
        gnutls_bye(tls->session, GNUTLS_SHUT_WR); /* if the socket takes it at once */
    if (tls->session != NULL)
        gnutls_deinit(tls->session);
    free(tls->out);
    free(tls);
}

/* ---- bytes ---- */

int redis_tls_put(struct redis_tls *tls, const char *bytes, size_t size)
{
    if (tls->held + size > tls->capacity) {
        size_t capacity =
            2 * tls->capacity > tls->held + size ? 2 * tls->capacity : tls->held + size;
        char *more = realloc(tls->out, capacity);
        if (more == NULL)
            return -1;
        tls->out = more;
        tls->capacity = capacity;
    }
    memcpy(tls->out + tls->held, bytes, size);
    tls->held += size;
    return 0;
}

int redis_tls_flush(struct redis_tls *tls, double timeout_s, struct error *err)
{
    enum { MOST_KEPT = 64 * 1024 };
    double until = clock_seconds() + timeout_s;
    for (size_t sent = 0; sent < tls->held;) {
        ssize_t some = gnutls_record_send(tls->session, tls->out + sent, tls->held - sent);
        if (some < 0 && await(tls, (int)some, until, err) != 0)
            return -1;
        if (some > 0) {
            sent += (size_t)some;
            until = clock_seconds() + timeout_s;
        }
    }
    tls->held = 0;
    if (tls->capacity > MOST_KEPT) {
        free(tls->out);
        tls->out = NULL;
        tls->capacity = 0;
    }
    return 0;
}

ssize_t redis_tls_read(struct redis_tls *tls, char *out, size_t size, double until,
                       struct error *err)
{
    /* gnutls_record_recv is the server's own, for clients (server/http/receive.h). */
    unsigned char number[8];
    ssize_t some;
    while ((some = gnutls_record_recv_seq(tls->session, out, size, number)) < 0)
        if (await(tls, (int)some, until, err) != 0)
            return -1;
    if (some == 0)
        return hung_up(tls, err);
    tls->refusable = false;
    return some;
}
