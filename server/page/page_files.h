/* SPDX-License-Identifier: Apache-2.0 */
/* The files of the page that `GET /` shows: those of this folder, in the program (embed.cmake). */
#ifndef SERVER_PAGE_PAGE_FILES_H
#define SERVER_PAGE_PAGE_FILES_H

#include <stddef.h>

struct page_file {
    const char *name, *content_type;
    const char *etag;          /* in its quotes: changes with the bytes */
    const unsigned char *data; /* [length] */
    size_t length;
};

extern const struct page_file page_files[]; /* [num_page_files] */
extern const size_t num_page_files;

#endif
