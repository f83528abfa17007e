/* SPDX-License-Identifier: Apache-2.0 */
/* The page for people: `GET /` and its files below /page/. It asks for what it shows as any other
 * client does, so its files hold nothing secret and need no key. */
#ifndef SERVER_ENDPOINTS_PAGE_H
#define SERVER_ENDPOINTS_PAGE_H

#include "server/http/http.h"

/* compare: servers that the page may show beside this one, "http://host:8001/path"; the page may
 * connect to their origins. page_clear frees what this makes, also on an error. */
int page_open(struct page_texts *page, const struct names *compare, struct error *err);
void page_clear(struct page_texts *page);

void page_handle(struct http_request *request);
void page_handle_file(struct http_request *request);

#endif
