/* SPDX-License-Identifier: Apache-2.0 */
/* What else is told of kept responses: the items of their requests, page by page; that one is gone.
 */
#ifndef API_RESPONSES_LIST_H
#define API_RESPONSES_LIST_H

#include "api/errors.h"
#include "api/sessions.h"

#include <stdbool.h>

struct responses_page {
    int limit;
    bool ascending;  /* the first item comes first */
    char after[160]; /* the item before the page; "": it begins with the first */
};

/* Of a query, whose values are NULL where it has none. */
int responses_page_read(struct responses_page *page, const char *limit, const char *order,
                        const char *after, struct api_error *err);
/* {object: "list", data, first_id, last_id, has_more} of the items that were asked of the response
 * `id` (responses_turns_asked, or a responses_echo's). */
void responses_page_encode(struct strbuf *buf, const struct responses_page *page, const char *asked,
                           size_t length, const char *id, struct api_error *err);

/* {id, object, deleted} */
void responses_deleted_encode(struct strbuf *buf, const char *id);

#endif
