/* SPDX-License-Identifier: Apache-2.0 */
/* A number of bytes as people read it. */
#ifndef LIB_BASE_SIZE_TEXT_H
#define LIB_BASE_SIZE_TEXT_H

enum { SIZE_TEXT = 32 };

/* "9216 bytes", "24.0 KiB", "14.8 MiB", "1.2 GiB": binary units, exact below 10 KiB. Returns text.
 */
const char *size_text(double bytes, char text[SIZE_TEXT]);

#endif
