/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the table of parameters for people and for programs; tests/scripts/write_parameters.py
 * puts it into parameters.md and openapi.json. */
#ifndef API_PARAMETER_DOCUMENTS_H
#define API_PARAMETER_DOCUMENTS_H

#include <stdio.h>

/* In Markdown, a table for each API. */
void parameter_documents_markdown(FILE *out);
/* {"CompletionRequest": {"model": {...}, ...}, ...}: what openapi.json's schemas of bodies have as
 * properties. Returns -1 without memory. */
int parameter_documents_schemas(FILE *out);

#endif
