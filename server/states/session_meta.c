/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/session_meta.h"

#include "api/sessions.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Seconds: what an int64_t holds, and no clock shows. */
#define FARTHEST 1e15

size_t session_meta_encode(const struct session_meta *meta, char *text)
{
    char turns[32] = "";
    if (meta->turns > 0)
        snprintf(turns, sizeof turns, "turns %lld\n", (long long)meta->turns);
    /* As many digits as a double needs to come back as it was. */
    int length = snprintf(text, SESSION_META_SIZE,
                          "session 1\nowner %s\nid %s\n%s%s%screated %.17g\nused %.17g\n%s",
                          meta->owner, meta->id, meta->space[0] ? "space " : "", meta->space,
                          meta->space[0] ? "\n" : "", meta->created, meta->used, turns);
    return (size_t)length;
}

int session_meta_parse(struct session_meta *meta, const char *text, size_t length)
{
    char copy[SESSION_META_SIZE];
    int head = 0, space = 0, end = 0;
    long long turns = 0;
    if (length >= sizeof copy || memchr(text, 0, length))
        return -1;
    memcpy(copy, text, length);
    copy[length] = 0;
    /* %s stops at white space, which neither an owner nor an id can hold. */
    _Static_assert(STORE_OWNER_SIZE == 33 && SESSION_ID_SIZE == 129 && SESSION_SPACE_SIZE == 33,
                   "the widths below");
    meta->space[0] = 0;
    if (sscanf(copy, "session 1\nowner %32s\nid %128s\n%n", meta->owner, meta->id, &head) != 2 ||
        !head)
        return -1;
    if (sscanf(copy + head, "space %32s\n%n", meta->space, &space) == 1 && !space)
        return -1;
    if (sscanf(copy + head + space, "created %lf\nused %lf%n", &meta->created, &meta->used, &end) !=
            2 ||
        !end || !session_id_valid(meta->id, strlen(meta->id)) ||
        !(fabs(meta->created) < FARTHEST) || !(fabs(meta->used) < FARTHEST))
        return -1;
    if (sscanf(copy + head + space + end, " turns %lld", &turns) == 1 && turns < 0)
        return -1;
    meta->turns = turns;
    return 0;
}
