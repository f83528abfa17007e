/* SPDX-License-Identifier: Apache-2.0 */
/* The document that GET /openapi.json replies: api/openapi.json with the program's version in it.
 * The build makes it (api/openapi.cmake). */
#ifndef API_OPENAPI_H
#define API_OPENAPI_H

extern const char openapi_document[];

#endif
