/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/credentials.h"

#include "server/log.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* At the end, for a thread that reads files. */
static const long END_NANOS = 300000000;

struct credentials {
    struct auth auth;
    struct tls *tls;
    struct names given; /* --api-key */
    char *key_file;

    pthread_t thread;
    atomic_int users;     /* the owner and the thread */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    bool asked, closing;
    credentials_namer *name;
    void *name_context;
    struct names fresh; /* keys by index: the last ones, which had no name when they came */
    size_t named;       /* of these */
};

static void release(struct credentials *credentials)
{
    if (atomic_fetch_sub(&credentials->users, 1) > 1)
        return;
    tls_free(credentials->tls);
    auth_clear(&credentials->auth);
    names_wipe(&credentials->given);
    names_wipe(&credentials->fresh);
    pthread_mutex_destroy(&credentials->lock);
    pthread_cond_destroy(&credentials->wake);
    free(credentials->key_file);
    free(credentials);
}

/* With the lock held, as the next. What has got a name keeps it, whatever fails after. */
static int name_keys(struct credentials *credentials, struct error *err)
{
    const struct names *fresh = &credentials->fresh;
    for (; credentials->named < fresh->count; credentials->named++)
        if (credentials->name(credentials->name_context, fresh->items[credentials->named], err))
            return -1;
    names_wipe(&credentials->fresh);
    credentials->named = 0;
    return 0;
}

static int take_keys(struct credentials *credentials, const struct names *keys, struct error *err)
{
    struct auth *auth = &credentials->auth;
    if (auth_learn(auth, keys, &credentials->fresh, err) ||
        (credentials->name && name_keys(credentials, err)))
        return -1;
    return auth_allow(auth, keys, err);
}

static void reload_keys(struct credentials *credentials)
{
    struct names keys = {0};
    struct error err = ERROR_INIT;
    int result = auth_read(&keys, (const char *const *)credentials->given.items,
                           credentials->given.count, credentials->key_file, &err);
    pthread_mutex_lock(&credentials->lock);
    if (result == 0 && !credentials->closing)
        result = take_keys(credentials, &keys, &err);
    pthread_mutex_unlock(&credentials->lock);
    if (result == 0)
        log_message(LOG_LEVEL_INFO, "reload: %zu API keys", keys.count);
    else
        log_message(LOG_LEVEL_ERROR, "reload: the API keys stay as they were: %s", err.message);
    names_wipe(&keys);
}

static void reload(struct credentials *credentials)
{
    struct error err = ERROR_INIT;
    if (credentials->key_file)
        reload_keys(credentials);
    if (credentials->tls && tls_renew(credentials->tls, &err))
        log_message(LOG_LEVEL_ERROR, "reload: the certificate stays as it was: %s", err.message);
    if (!credentials->key_file && !credentials->tls)
        log_message(LOG_LEVEL_INFO,
                    "reload: there is neither --api-key-file nor --tls-cert to read again");
}

static void *reload_main(void *context)
{
    struct credentials *credentials = context;
    pthread_setname_np(pthread_self(), "regla-reload");
    pthread_mutex_lock(&credentials->lock);
    for (;;) {
        while (!credentials->asked && !credentials->closing)
            pthread_cond_wait(&credentials->wake, &credentials->lock);
        if (credentials->closing)
            break;
        credentials->asked = false;
        pthread_mutex_unlock(&credentials->lock);
        reload(credentials);
        pthread_mutex_lock(&credentials->lock);
    }
    pthread_mutex_unlock(&credentials->lock);
    release(credentials);
    return NULL;
}

static int start(struct credentials *credentials, struct error *err)
{
    atomic_fetch_add(&credentials->users, 1);
    int code = pthread_create(&credentials->thread, NULL, reload_main, credentials);
    if (code) {
        atomic_fetch_sub(&credentials->users, 1);
        return error_set(err, ERROR_IO, "cannot start a thread: %s", strerror(code));
    }
    return 0;
}

static int read_all(struct credentials *credentials, const struct credential_options *options,
                    struct error *err)
{
    struct names keys = {0};
    int result = -1;
    if (options->api_key_file && !(credentials->key_file = strdup(options->api_key_file)))
        error_set(err, ERROR_NO_MEMORY, "out of memory for API keys");
    else if (auth_read(&keys, options->api_keys, options->num_api_keys, options->api_key_file,
                       err) == 0 &&
             names_add_lists(&credentials->given, options->api_keys, options->num_api_keys, err) ==
                 0)
        result = take_keys(credentials, &keys, err);
    names_wipe(&keys);
    if (result == 0 && options->tls_certificate)
        result = tls_open(&credentials->tls, options->tls_certificate, options->tls_key, err);
    return result;
}

int credentials_open(struct credentials **out, const struct credential_options *options,
                     struct error *err)
{
    if (!options->tls_certificate != !options->tls_key)
        return error_set(err, ERROR_INVALID, "--tls-cert and --tls-key: expected both, got %s",
                         options->tls_key ? "--tls-key alone" : "--tls-cert alone");
    struct credentials *credentials = calloc(1, sizeof *credentials);
    if (!credentials)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for API keys");
    atomic_init(&credentials->users, 1);
    pthread_mutex_init(&credentials->lock, NULL);
    pthread_cond_init(&credentials->wake, NULL);
    if (auth_init(&credentials->auth, err) || read_all(credentials, options, err) ||
        start(credentials, err)) {
        release(credentials);
        return -1;
    }
    *out = credentials;
    return 0;
}

void credentials_close(struct credentials *credentials)
{
    if (!credentials)
        return;
    pthread_mutex_lock(&credentials->lock);
    credentials->closing = true;
    credentials->name = NULL;
    pthread_cond_signal(&credentials->wake);
    pthread_mutex_unlock(&credentials->lock);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += END_NANOS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_timedjoin_np(credentials->thread, NULL, &until))
        pthread_detach(credentials->thread);
    release(credentials);
}

void credentials_reload(struct credentials *credentials)
{
    pthread_mutex_lock(&credentials->lock);
    credentials->asked = true;
    pthread_cond_signal(&credentials->wake);
    pthread_mutex_unlock(&credentials->lock);
}

struct auth *credentials_auth(struct credentials *credentials)
{
    return &credentials->auth;
}

struct tls *credentials_tls(struct credentials *credentials)
{
    return credentials->tls;
}

int credentials_name(struct credentials *credentials, credentials_namer *name, void *context,
                     struct error *err)
{
    pthread_mutex_lock(&credentials->lock);
    credentials->name = name;
    credentials->name_context = context;
    int result =
        auth_count(&credentials->auth) == 0 ? name(context, "", err) : name_keys(credentials, err);
    pthread_mutex_unlock(&credentials->lock);
    return result;
}
