/* SPDX-License-Identifier: Apache-2.0 */
/* What a request says about the form of its text: response_format, vLLM's structured_outputs and
 * guided_*, SGLang's regex, ebnf and json_schema, llama.cpp's grammar and json_schema (api.md). All
 * of them come to a kind of grammar and its specification (lib/grammar/grammar.h). */
#ifndef API_CONSTRAINT_H
#define API_CONSTRAINT_H

#include "api/errors.h"
#include "lib/grammar/grammar.h"

#include <jansson.h>
#include <stddef.h>

struct constraint {
    const char *param; /* the request's field; NULL: the text is free */
    const char *name;  /* of the field or its member, for messages */
    enum grammar_kind kind;
    char *spec;    /* [length]: JSON without spaces, its keys in their order; NULL: none */
    size_t length; /* bytes */
};

/* Reads the fields of a request. More than one constraint, a wrong type, an unknown member: -1 with
 * *err. Whether the specification is right, the compiler says. The caller clears *constraint in
 * every case. */
int constraint_parse(struct constraint *constraint, const json_t *fields, struct api_error *err);
void constraint_clear(struct constraint *constraint);

/* The specification as grammar_compile takes it: a reference that the caller owns, NULL without
 * one. -1: out of memory. */
int constraint_load(const struct constraint *constraint, json_t **spec, struct api_error *err);

/* An error of its grammar, as one of the field. */
int constraint_error(const struct constraint *constraint, const struct error *error,
                     struct api_error *err);

#endif
