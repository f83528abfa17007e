/* SPDX-License-Identifier: Apache-2.0 */
/* What requests say about the form of their texts: each field's kind and specification, and the
 * place of each fault. */
#include "api/completion.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const char *const served[] = {"tiny"};
static const struct completion_limits limits = {
    .models = served, .num_models = 1, .vocab_size = 300};

static int parse(struct completion_request *request, const char *members, struct api_error *err)
{
    char body[1024];
    snprintf(body, sizeof body, "{\"prompt\":\"x\",%s}", members);
    *err = (struct api_error){0};
    return completion_parse(request, body, strlen(body), &limits, err);
}

Test(completion_constraint, each_field_has_its_kind_and_specification)
{
    const struct {
        const char *members, *param;
        enum grammar_kind kind;
        const char *spec; /* NULL: none */
    } cases[] = {
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format", GRAMMAR_JSON, NULL},
        {"\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"array\"}}",
         "response_format", GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\"}"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":"
         "{\"z\": 1, \"a\": 1.5},\"strict\":true,\"description\":null}}",
         "response_format", GRAMMAR_JSON_SCHEMA, "{\"z\":1,\"a\":1.5}"},
        {"\"structured_outputs\":{\"json\":true}", "structured_outputs", GRAMMAR_JSON_SCHEMA,
         "true"},
        {"\"structured_outputs\":{\"regex\":\"a+\",\"json\":null,\"whitespace_pattern\":null}",
         "structured_outputs", GRAMMAR_REGEX, "\"a+\""},
        {"\"structured_outputs\":{\"choice\":[\"a\",\"b\\u0000\"],\"json_object\":false}",
         "structured_outputs", GRAMMAR_CHOICE, "[\"a\",\"b\\u0000\"]"},
        {"\"structured_outputs\":{\"grammar\":\"root ::= \\\"a\\\"\"}", "structured_outputs",
         GRAMMAR_GBNF, "\"root ::= \\\"a\\\"\""},
        {"\"structured_outputs\":{\"json_object\":true}", "structured_outputs", GRAMMAR_JSON, NULL},
        {"\"guided_json\":{}", "guided_json", GRAMMAR_JSON_SCHEMA, "{}"},
        {"\"guided_json\":\" {\\\"type\\\" : \\\"null\\\"}\"", "guided_json", GRAMMAR_JSON_SCHEMA,
         "{\"type\":\"null\"}"},
        {"\"guided_json_object\":true", "guided_json_object", GRAMMAR_JSON, NULL},
        {"\"guided_regex\":\"x\"", "guided_regex", GRAMMAR_REGEX, "\"x\""},
        {"\"guided_choice\":[\"x\"]", "guided_choice", GRAMMAR_CHOICE, "[\"x\"]"},
        {"\"guided_grammar\":\"g\"", "guided_grammar", GRAMMAR_GBNF, "\"g\""},
        {"\"json_schema\":\"{}\"", "json_schema", GRAMMAR_JSON_SCHEMA, "{}"},
        {"\"json_schema\":\" true\\n\"", "json_schema", GRAMMAR_JSON_SCHEMA, "true"},
        {"\"guided_json\":\"false\"", "guided_json", GRAMMAR_JSON_SCHEMA, "false"},
        {"\"json_schema\":{\"type\":\"null\"},\"regex\":\"\"", "json_schema", GRAMMAR_JSON_SCHEMA,
         "{\"type\":\"null\"}"},
        {"\"regex\":\"x\",\"guided_choice\":[]", "regex", GRAMMAR_REGEX, "\"x\""},
        {"\"ebnf\":\"g\"", "ebnf", GRAMMAR_GBNF, "\"g\""},
        {"\"grammar\":\"g\",\"response_format\":{\"type\":\"text\"}", "grammar", GRAMMAR_GBNF,
         "\"g\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct completion_request request;
        struct api_error err;
        cr_assert_eq(parse(&request, cases[i].members, &err), 0, "%s: %s", cases[i].members,
                     err.message);
        const struct constraint *got = &request.constraint;
        cr_assert(got->param != NULL, "%s", cases[i].members);
        cr_expect_str_eq(got->param, cases[i].param);
        cr_expect(got->kind == cases[i].kind, "%s: kind %d", cases[i].members, (int)got->kind);
        cr_expect(cases[i].spec == NULL ? got->spec == NULL && got->length == 0
                                        : got->length == strlen(cases[i].spec) &&
                                              memcmp(got->spec, cases[i].spec, got->length) == 0,
                  "%s: %.*s", cases[i].members, (int)got->length, got->spec ? got->spec : "");
        json_t *spec;
        cr_expect(constraint_load(got, &spec, &err) == 0 && (spec == NULL) == (got->spec == NULL));
        json_decref(spec);
        completion_request_clear(&request);
    }
}

Test(completion_constraint, what_asks_for_nothing_is_none)
{
    static const char *const cases[] = {
        "\"response_format\":null",
        "\"response_format\":{\"type\":\"text\",\"schema\":null}",
        "\"structured_outputs\":{}",
        "\"structured_outputs\":{\"regex\":null,\"json_object\":false,\"disable_fallback\":true,"
        "\"disable_any_whitespace\":false}",
        "\"guided_json\":null,\"guided_json_object\":false,\"guided_regex\":\"\","
        "\"guided_choice\":[],\"guided_grammar\":\"\",\"json_schema\":\"\",\"regex\":\"\","
        "\"ebnf\":\"\",\"grammar\":\"\"",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct completion_request request;
        struct api_error err;
        cr_assert_eq(parse(&request, cases[i], &err), 0, "%s: %s", cases[i], err.message);
        cr_expect(request.constraint.param == NULL && request.constraint.spec == NULL);
        completion_request_clear(&request);
    }
}

Test(completion_constraint, faults_name_the_field_and_the_place)
{
    const struct {
        const char *members;
        enum api_code code;
        const char *param, *words;
    } cases[] = {
        {"\"response_format\":\"json\"", API_INVALID_TYPE, "response_format", "expected an object"},
        {"\"response_format\":{}", API_MISSING_PARAMETER, "response_format", "type is required"},
        {"\"response_format\":{\"type\":1}", API_INVALID_TYPE, "response_format",
         "response_format.type: expected a string"},
        {"\"response_format\":{\"type\":\"xml\"}", API_INVALID_VALUE, "response_format",
         "expected text, json_object or json_schema, got \"xml\""},
        {"\"response_format\":{\"type\":\"text\",\"schema\":{}}", API_UNSUPPORTED,
         "response_format", "schema is not supported"},
        {"\"response_format\":{\"type\":\"json_object\",\"strict\":true}", API_UNSUPPORTED,
         "response_format", "strict is not supported"},
        {"\"response_format\":{\"type\":\"json_schema\"}", API_MISSING_PARAMETER, "response_format",
         "response_format.json_schema is required"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\"}}",
         API_MISSING_PARAMETER, "response_format", "json_schema.schema is required"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":1,\"schema\":{}}"
         "}",
         API_INVALID_TYPE, "response_format", "json_schema.name: expected a string"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"strict\":1,\"schema\":{}"
         "}}",
         API_INVALID_TYPE, "response_format", "json_schema.strict: expected a boolean"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"x\":1,\"schema\":{}}}",
         API_UNSUPPORTED, "response_format", "json_schema: x is not supported"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":7}}",
         API_INVALID_TYPE, "response_format", "json_schema.schema: expected a schema"},
        {"\"structured_outputs\":[]", API_INVALID_TYPE, "structured_outputs", "expected an object"},
        {"\"structured_outputs\":{\"choise\":[]}", API_UNSUPPORTED, "structured_outputs",
         "choise is not supported"},
        {"\"structured_outputs\":{\"whitespace_pattern\":\" \"}", API_UNSUPPORTED,
         "structured_outputs", "whitespace_pattern is not supported"},
        {"\"structured_outputs\":{\"regex\":[]}", API_INVALID_TYPE, "structured_outputs",
         "structured_outputs.regex: expected a string"},
        {"\"structured_outputs\":{\"json_object\":1}", API_INVALID_TYPE, "structured_outputs",
         "json_object: expected a boolean"},
        {"\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"a\"]}", API_INVALID_VALUE,
         "structured_outputs",
         "structured_outputs.choice: not allowed with structured_outputs.regex"},
        {"\"guided_json\":7", API_INVALID_TYPE, "guided_json", "expected a schema"},
        {"\"guided_json\":\"{\\\"a\\\"\"", API_INVALID_VALUE, "guided_json", "at byte"},
        {"\"guided_json\":\"\"", API_INVALID_VALUE, "guided_json", "at byte 0"},
        {"\"guided_choice\":\"a\"", API_INVALID_TYPE, "guided_choice", "a list of strings"},
        {"\"guided_regex\":1", API_INVALID_TYPE, "guided_regex", "a string"},
        {"\"guided_regex\":\"a\",\"regex\":\"a\"", API_INVALID_VALUE, "regex",
         "regex: not allowed with guided_regex"},
        {"\"ebnf\":\"a\",\"response_format\":{\"type\":\"json_object\"}", API_INVALID_VALUE, "ebnf",
         "ebnf: not allowed with response_format"},
        {"\"guided_whitespace_pattern\":\"x\"", API_UNSUPPORTED, "guided_whitespace_pattern", ""},
        {"\"grammar_lazy\":true,\"grammar\":\"g\"", API_UNSUPPORTED, "grammar_lazy", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct completion_request request;
        struct api_error err;
        cr_assert_eq(parse(&request, cases[i].members, &err), -1, "%s", cases[i].members);
        cr_expect_eq(err.code, cases[i].code, "%s: %d", cases[i].members, (int)err.code);
        cr_expect_str_eq(err.param, cases[i].param, "%s: %s", cases[i].members, err.param);
        cr_expect(strstr(err.message, cases[i].words) != NULL, "%s: %s", cases[i].members,
                  err.message);
    }
}

Test(completion_constraint, a_model_without_a_tokenizer_takes_none)
{
    const struct completion_limits ids = {
        .models = served, .num_models = 1, .vocab_size = 300, .token_ids_only = true};
    static const char body[] = "{\"prompt\":[1],\"guided_regex\":\"a\"}";
    struct completion_request request;
    struct api_error err = {0};
    cr_assert_eq(completion_parse(&request, body, sizeof body - 1, &ids, &err), -1);
    cr_expect(err.code == API_INVALID_VALUE && strcmp(err.param, "guided_regex") == 0);
}
