/* SPDX-License-Identifier: Apache-2.0 */
/* What the log has been told of an API key, so that it is not told with each request. For any
 * thread. What was longest ago may be forgotten, and is told again. */
#ifndef SERVER_NOTED_H
#define SERVER_NOTED_H

#include <stdbool.h>
#include <stdint.h>

enum { NOTED_MOST = 1024 };

struct noted { /* zero-initialise */
    _Atomic uint64_t seen[NOTED_MOST];
};

/* Whether that is said of the owner for the first time. */
bool noted_anew(struct noted *noted, const char *owner, const char *text);

#endif
