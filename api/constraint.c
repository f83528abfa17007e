/* SPDX-License-Identifier: Apache-2.0 */
#include "api/constraint.h"

#include "api/request.h"
#include "lib/base/fields.h"

#include <stdlib.h>
#include <string.h>

enum form { FORM_SCHEMA, FORM_TEXT, FORM_CHOICES, FORM_FLAG };

/* A field, or a member of structured_outputs, that is a constraint by itself. */
struct source {
    const char *key, *name;
    enum form form;
    enum grammar_kind kind;
    const char *nothing; /* values that ask for nothing, as fields_ask_nothing has them */
};

static const struct source FIELDS[] = {
    {"guided_json", "guided_json", FORM_SCHEMA, GRAMMAR_JSON_SCHEMA, ""},
    {"guided_regex", "guided_regex", FORM_TEXT, GRAMMAR_REGEX, "\"\""},
    {"guided_choice", "guided_choice", FORM_CHOICES, GRAMMAR_CHOICE, "[]"},
    {"guided_grammar", "guided_grammar", FORM_TEXT, GRAMMAR_GBNF, "\"\""},
    {"guided_json_object", "guided_json_object", FORM_FLAG, GRAMMAR_JSON, "false"},
    {"json_schema", "json_schema", FORM_SCHEMA, GRAMMAR_JSON_SCHEMA, "\"\""},
    {"regex", "regex", FORM_TEXT, GRAMMAR_REGEX, "\"\""},
    {"ebnf", "ebnf", FORM_TEXT, GRAMMAR_GBNF, "\"\""},
    {"grammar", "grammar", FORM_TEXT, GRAMMAR_GBNF, "\"\""},
};

static const struct source MEMBERS[] = {
    {"json", "structured_outputs.json", FORM_SCHEMA, GRAMMAR_JSON_SCHEMA, ""},
    {"regex", "structured_outputs.regex", FORM_TEXT, GRAMMAR_REGEX, ""},
    {"choice", "structured_outputs.choice", FORM_CHOICES, GRAMMAR_CHOICE, ""},
    {"grammar", "structured_outputs.grammar", FORM_TEXT, GRAMMAR_GBNF, ""},
    {"json_object", "structured_outputs.json_object", FORM_FLAG, GRAMMAR_JSON, "false"},
};

/* Members of structured_outputs that may be there when they ask for nothing. */
static const struct {
    const char *key, *nothing;
} OFF[] = {
    {"disable_any_whitespace", "false"},
    {"disable_fallback", "false true"}, /* there is one automaton, and nothing to fall back on */
    {"disable_additional_properties", "false"},
    {"whitespace_pattern", ""},
    {"structural_tag", ""},
};

enum {
    NUM_FIELDS = sizeof FIELDS / sizeof *FIELDS,
    NUM_MEMBERS = sizeof MEMBERS / sizeof *MEMBERS,
    NUM_OFF = sizeof OFF / sizeof *OFF
};

static int wrong_type(const char *param, const char *name, const char *expected, const json_t *got,
                      struct api_error *err)
{
    return api_error_set(err, API_INVALID_TYPE, param, "%s: expected %s, got %s", name, expected,
                         fields_kind(got));
}

/* Takes a specification of the right type; NULL: there is none. */
static int take(struct constraint *constraint, const char *param, const char *name,
                enum grammar_kind kind, const json_t *spec, struct api_error *err)
{
    if (constraint->param)
        return api_error_set(err, API_INVALID_VALUE, param,
                             "%s: not allowed with %s: a text has one constraint", name,
                             constraint->name);
    constraint->param = param;
    constraint->name = name;
    constraint->kind = kind;
    if (!spec)
        return 0;
    return request_dump(spec, &constraint->spec, &constraint->length, err);
}

/* The boolean that a text holds; NULL: it holds something else. */
static json_t *boolean_of(const char *text, size_t length)
{
    static const char space[] = " \t\r\n";
    const char *word = text + strspn(text, space);
    size_t letters = strcspn(word, space);
    if (word + letters + strspn(word + letters, space) != text + length)
        return NULL;
    return letters == 4 && memcmp(word, "true", 4) == 0    ? json_true()
           : letters == 5 && memcmp(word, "false", 5) == 0 ? json_false()
                                                           : NULL;
}

/* A schema, or a text that holds one. */
static int take_schema(struct constraint *constraint, const char *param, const char *name,
                       const json_t *value, struct api_error *err)
{
    struct api_error inside = {0};
    if (json_is_object(value) || json_is_boolean(value))
        return take(constraint, param, name, GRAMMAR_JSON_SCHEMA, value, err);
    if (!json_is_string(value))
        return wrong_type(param, name, "a schema (an object, or its JSON in a string)", value, err);
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    json_t *schema = boolean_of(text, length);
    if (!schema)
        schema = request_load(text, length, &inside);
    if (!schema && inside.code == API_OUT_OF_MEMORY)
        return request_no_memory(err);
    if (!schema)
        return api_error_set(err, API_INVALID_VALUE, param, "%s: %s", name, inside.message);
    int result = take(constraint, param, name, GRAMMAR_JSON_SCHEMA, schema, err);
    json_decref(schema);
    return result;
}

static int take_source(struct constraint *constraint, const char *param,
                       const struct source *source, const json_t *value, struct api_error *err)
{
    switch (source->form) {
    case FORM_SCHEMA:
        return take_schema(constraint, param, source->name, value, err);
    case FORM_FLAG:
        if (!json_is_boolean(value))
            return wrong_type(param, source->name, "a boolean", value, err);
        return take(constraint, param, source->name, source->kind, NULL, err);
    case FORM_CHOICES:
        if (!json_is_array(value))
            return wrong_type(param, source->name, "a list of strings", value, err);
        break;
    case FORM_TEXT:
        if (!json_is_string(value))
            return wrong_type(param, source->name, "a string", value, err);
    }
    return take(constraint, param, source->name, source->kind, value, err);
}

/* structured_outputs. */

static const struct source *find_member(const char *key)
{
    for (int i = 0; i < NUM_MEMBERS; i++)
        if (strcmp(MEMBERS[i].key, key) == 0)
            return &MEMBERS[i];
    return NULL;
}

static int refuse_member(const char *param, const char *key, const json_t *value,
                         struct api_error *err)
{
    for (int i = 0; i < NUM_OFF; i++)
        if (strcmp(OFF[i].key, key) == 0 && fields_ask_nothing(value, OFF[i].nothing))
            return 0;
    return api_error_set(err, API_UNSUPPORTED, param, "%s: %.60s is not supported", param, key);
}

static int parse_structured_outputs(struct constraint *constraint, const json_t *fields,
                                    struct api_error *err)
{
    static const char param[] = "structured_outputs";
    json_t *members = request_field(fields, param), *value;
    const char *key;
    if (!members)
        return 0;
    if (!json_is_object(members))
        return wrong_type(param, param, "an object", members, err);
    json_object_foreach(members, key, value)
    {
        const struct source *member = find_member(key);
        if (json_is_null(value))
            continue;
        if (!member && refuse_member(param, key, value, err))
            return -1;
        if (member && !fields_ask_nothing(value, member->nothing) &&
            take_source(constraint, param, member, value, err))
            return -1;
    }
    return 0;
}

/* response_format. */

static const char RESPONSE_FORMAT[] = "response_format";

/* Refuses members that are not among known [count]. */
static int check_members(const json_t *object, const char *name, const char *const *known,
                         size_t count, struct api_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < count && !found; i++)
            found = strcmp(key, known[i]) == 0;
        if (!found && !json_is_null(value))
            return api_error_set(err, API_UNSUPPORTED, RESPONSE_FORMAT,
                                 "%s: %.60s is not supported", name, key);
    }
    return 0;
}

/* {name, description, schema, strict}. Output always keeps to the schema, strict or not. */
static int parse_json_schema(struct constraint *constraint, const json_t *format,
                             struct api_error *err)
{
    static const char name[] = "response_format.json_schema";
    static const char *const known[] = {"name", "description", "schema", "strict"};
    const json_t *described = request_field(format, "json_schema");
    if (!described)
        return api_error_set(err, API_MISSING_PARAMETER, RESPONSE_FORMAT, "%s is required", name);
    if (!json_is_object(described))
        return wrong_type(RESPONSE_FORMAT, name, "an object", described, err);
    if (check_members(described, name, known, sizeof known / sizeof *known, err))
        return -1;
    const json_t *title = request_field(described, "name");
    const json_t *strict = request_field(described, "strict");
    const json_t *schema = request_field(described, "schema");
    if (title && !json_is_string(title))
        return wrong_type(RESPONSE_FORMAT, "response_format.json_schema.name", "a string", title,
                          err);
    if (strict && !json_is_boolean(strict))
        return wrong_type(RESPONSE_FORMAT, "response_format.json_schema.strict", "a boolean",
                          strict, err);
    if (!schema)
        return api_error_set(err, API_MISSING_PARAMETER, RESPONSE_FORMAT, "%s.schema is required",
                             name);
    return take_schema(constraint, RESPONSE_FORMAT, "response_format.json_schema.schema", schema,
                       err);
}

/* {type: "json_object"}; as llama.cpp has it, with a schema. */
static int parse_json_object(struct constraint *constraint, const json_t *format,
                             struct api_error *err)
{
    const json_t *schema = request_field(format, "schema");
    if (schema)
        return take_schema(constraint, RESPONSE_FORMAT, "response_format.schema", schema, err);
    return take(constraint, RESPONSE_FORMAT, RESPONSE_FORMAT, GRAMMAR_JSON, NULL, err);
}

static int parse_response_format(struct constraint *constraint, const json_t *fields,
                                 struct api_error *err)
{
    const json_t *format = request_field(fields, RESPONSE_FORMAT);
    if (!format)
        return 0;
    if (!json_is_object(format))
        return wrong_type(RESPONSE_FORMAT, RESPONSE_FORMAT, "an object", format, err);
    const json_t *type = request_field(format, "type");
    if (!type)
        return api_error_set(err, API_MISSING_PARAMETER, RESPONSE_FORMAT,
                             "response_format.type is required");
    if (!json_is_string(type))
        return wrong_type(RESPONSE_FORMAT, "response_format.type", "a string", type, err);
    const char *kind = json_string_value(type);
    bool text = strcmp(kind, "text") == 0, schema = strcmp(kind, "json_schema") == 0;
    if (!text && !schema && strcmp(kind, "json_object") != 0)
        return api_error_set(err, API_INVALID_VALUE, RESPONSE_FORMAT,
                             "response_format.type: expected text, json_object or json_schema, got "
                             "\"%.40s\"",
                             kind);
    const char *const known[] = {"type", schema ? "json_schema" : "schema"};
    if (check_members(format, RESPONSE_FORMAT, known, text ? 1 : 2, err))
        return -1;
    return text     ? 0
           : schema ? parse_json_schema(constraint, format, err)
                    : parse_json_object(constraint, format, err);
}

/* The request. */

int constraint_parse(struct constraint *constraint, const json_t *fields, struct api_error *err)
{
    *constraint = (struct constraint){0};
    if (parse_response_format(constraint, fields, err) ||
        parse_structured_outputs(constraint, fields, err))
        return -1;
    for (int i = 0; i < NUM_FIELDS; i++) {
        const json_t *value = request_field(fields, FIELDS[i].key);
        if (value && !fields_ask_nothing(value, FIELDS[i].nothing) &&
            take_source(constraint, FIELDS[i].key, &FIELDS[i], value, err))
            return -1;
    }
    return 0;
}

void constraint_clear(struct constraint *constraint)
{
    free(constraint->spec);
    *constraint = (struct constraint){0};
}

int constraint_load(const struct constraint *constraint, json_t **spec, struct api_error *err)
{
    *spec = NULL;
    if (!constraint->spec)
        return 0;
    *spec = request_load_dump(constraint->spec, constraint->length, err);
    return *spec ? 0 : -1;
}

int constraint_error(const struct constraint *constraint, const struct error *error,
                     struct api_error *err)
{
    struct error placed = *error;
    error_prefix(&placed, "%s", constraint->name);
    return api_error_from_engine(err, &placed, constraint->param);
}
