/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/framing.h"

#include <string.h>
#include <strings.h>

struct framing {
    int hosts, lengths, encodings, spaced; /* headers; spaced: with white space in their names */
    const char *encoding;
};

static enum MHD_Result count(void *context, enum MHD_ValueKind kind, const char *name,
                             const char *value)
{
    struct framing *framing = context;
    (void)kind;
    framing->hosts += strcasecmp(name, "Host") == 0;
    framing->lengths += strcasecmp(name, "Content-Length") == 0;
    framing->spaced += name[strcspn(name, " \t")] != '\0';
    if (strcasecmp(name, "Transfer-Encoding") == 0) {
        framing->encodings++;
        framing->encoding = value ? value : "";
    }
    return MHD_YES;
}

/* Section 3.2. Before version 1.1 a request may do without. */
static int check_host(const struct framing *framing, const char *version, struct api_error *err)
{
    bool may_lack = strcmp(version, MHD_HTTP_VERSION_1_1) != 0;
    if (framing->hosts == 1 || (framing->hosts == 0 && may_lack))
        return 0;
    return api_error_set(err, API_INVALID_VALUE, NULL, "Host: expected one, got %d",
                         framing->hosts);
}

/* Refuses a body whose end another server could see elsewhere (sections 5.1 and 6.3), or whose end
 * we cannot see. */
static int check_end(const struct framing *framing, struct api_error *err)
{
    if (framing->spaced > 0)
        return api_error_set(err, API_INVALID_VALUE, NULL,
                             "expected no white space in the name of a header");
    if (framing->lengths > 1)
        return api_error_set(err, API_INVALID_VALUE, NULL, "Content-Length: expected one, got %d",
                             framing->lengths);
    if (framing->encodings > 1)
        return api_error_set(err, API_INVALID_VALUE, NULL,
                             "Transfer-Encoding: expected one, got %d", framing->encodings);
    if (framing->encodings > 0 && framing->lengths > 0)
        return api_error_set(err, API_INVALID_VALUE, NULL,
                             "expected Content-Length or Transfer-Encoding, got both");
    if (framing->encodings > 0 && strcasecmp(framing->encoding, "chunked") != 0)
        return api_error_set(err, API_NOT_IMPLEMENTED, NULL,
                             "Transfer-Encoding: expected chunked, got \"%s\"", framing->encoding);
    return 0;
}

int framing_check(struct MHD_Connection *connection, const char *version, struct api_error *err)
{
    struct framing framing = {0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, count, &framing);
    return check_end(&framing, err) != 0 || check_host(&framing, version, err) != 0 ? -1 : 0;
}
