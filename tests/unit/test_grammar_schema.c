/* SPDX-License-Identifier: Apache-2.0 */
/* JSON Schemas as grammars: which texts each keyword allows, and what is refused and where. */
#include "tests/unit/grammar_texts.h"

#define S "\x1f" /* between texts */

static const struct grammar_case CASES[] = {
    {"true", "1" S "\"a\"" S "null" S "{\"a\": [1,{}]}" S "-0.5e+10",
     "" S "a" S "01" S "1." S "[1,]"},
    {"{}", "[]" S "false", "nul"},
    {"{\"type\":\"null\"}", "null", "0" S "true"},
    {"{\"type\":\"boolean\"}", "true" S "false", "null" S "True"},
    {"{\"type\":[\"null\",\"boolean\"]}", "null" S "true", "1"},
    {"{\"type\":\"integer\"}", "0" S "-1" S "123456789012345678",
     "-0" S "1.0" S "1e3" S "1234567890123456789"},
    {"{\"type\":\"number\"}", "0" S "-0" S "-1.50" S "2E-3", "1.e2" S "+1" S ".5" S "1e123"},
    {"{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}",
     "-12" S "-9" S "0" S "7" S "99" S "100" S "105",
     "-13" S "-20" S "106" S "110" S "200" S "-0" S "00"},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":3,\"exclusiveMaximum\":5.5}", "4" S "5",
     "3" S "6"},
    {"{\"type\":\"integer\",\"minimum\":2.5}", "3" S "10" S "999999999999999999", "2" S "-3"},
    {"{\"type\":\"integer\",\"maximum\":-100}", "-100" S "-999" S "-1000", "-99" S "0" S "100"},
    {"{\"type\":\"integer\",\"minimum\":9223372036854775807}", "9223372036854775807",
     "9223372036854775806"},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":1e16,\"maximum\":1.0000000000000002e16}",
     "10000000000000001" S "10000000000000002", "10000000000000000" S "10000000000000003"},
    {"{\"type\":\"integer\",\"minimum\":-1e16,\"exclusiveMaximum\":-9999999999999998.0}",
     "-10000000000000000" S "-9999999999999999", "-9999999999999998" S "-10000000000000001"},
    {"{\"type\":[\"integer\",\"null\"],\"exclusiveMaximum\":-1e300}", "null", "-9"},
    {"{\"type\":[\"integer\",\"null\"],\"minimum\":9.3e18}", "null", "9"},
    {"{\"enum\":[9007199254740993,9007199254740992,9007199254740992.0,1.5],\"maximum\":"
     "9007199254740992}",
     "9007199254740992" S "1.5", "9007199254740993"},
    {"{\"enum\":[9007199254740993,-5,5,1e300],\"exclusiveMinimum\":9007199254740992.0}",
     "9007199254740993" S "1e+300", "-5" S "5"},
    {"{\"enum\":[9007199254740993,1],\"allOf\":[{\"enum\":[9007199254740992.0,1.0]}]}", "1",
     "9007199254740993"},
    {"{\"type\":\"string\"}",
     "\"\"" S "\"\xC3\xA9\xF0\x9F\x98\x80\"" S "\"\\n\\u00e9\\uD83D\\uDE00\"",
     "\"\n\"" S "\"\\x\"" S "\"\\ud800\"" S "\"\\uDE00\"" S "\"\\u0000\"" S "\"\xED\xA0\x80\"" S
     "\"\xC0\x80\""},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     "\"ab\"" S "\"\xC3\xA9\xF0\x9F\x98\x80\\n\"" S "\"\\ud83d\\ude00x\"",
     "\"a\"" S "\"abcd\"" S "\"\\n\""},
    {"{\"type\":\"string\",\"pattern\":\"^a+$\"}", "\"a\"" S "\"aaa\"",
     "\"\"" S "\"b\"" S "\"ab\""},
    {"{\"type\":\"string\",\"pattern\":\"b\"}", "\"b\"" S "\"abc\"", "\"a\""},
    {"{\"type\":\"string\",\"pattern\":\"^[\\\"\\\\\\\\]\\n$\"}", "\"\\\"\\n\"" S "\"\\\\\\n\"",
     "\"a\\n\""},
    {"{\"type\":\"string\",\"pattern\":\"^a*$\",\"minLength\":2,\"maxLength\":3}",
     "\"aa\"" S "\"aaa\"", "\"a\"" S "\"aaaa\""},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     "\"2024-02-29\"" S "\"1999-12-31\"" S "\"2000-02-29\"",
     "\"2023-02-29\"" S "\"1900-02-29\"" S "\"2024-04-31\"" S "\"2024-13-01\""},
    {"{\"format\":\"time\",\"type\":\"string\"}", "\"23:59:59Z\"" S "\"00:00:00.5+01:30\"",
     "\"24:00:00Z\"" S "\"1:00:00Z\"" S "\"10:00:00\""},
    {"{\"format\":\"date-time\",\"type\":\"string\"}", "\"2024-01-31T10:00:00Z\"",
     "\"2024-01-32T10:00:00Z\""},
    {"{\"format\":\"uuid\",\"type\":\"string\"}", "\"123e4567-e89b-12d3-A456-426614174000\"",
     "\"123e4567\""},
    {"{\"format\":\"email\",\"type\":\"string\"}", "\"a.b+c@example.org\"",
     "\"a@b\"" S "\"@b.c\"" S "\"a@-b.c\""},
    {"{\"format\":\"ipv4\",\"type\":\"string\"}", "\"0.10.199.255\"",
     "\"256.1.1.1\"" S "\"01.1.1.1\"" S "\"1.1.1\""},
    {"{\"enum\":[1,\"a\\n\",null,[1,{\"k\":2.5}]]}",
     "1" S "\"a\\n\"" S "null" S "[1, {\"k\": 2.5}]", "2" S "\"a\""},
    {"{\"const\":\"\xC3\xA9\"}", "\"\xC3\xA9\"", "\"e\""},
    {"{\"type\":\"string\",\"enum\":[1,\"a\",\"bb\"],\"minLength\":2}", "\"bb\"", "1" S "\"a\""},
    {"{\"type\":\"array\",\"items\":{\"type\":\"null\"}}", "[]" S "[null]" S "[ null, null\n]",
     "[null,]" S "[1]"},
    {"{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":2,\"maxItems\":3}",
     "[1,1]" S "[1, 1,1]", "[]" S "[1]" S "[1,1,1,1]"},
    {"{\"type\":\"array\",\"maxItems\":0}", "[]" S "[ ]", "[1]"},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false}",
     "[]" S "[1]" S "[1,2]", "[2]" S "[1,2,3]"},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":2},\"minItems\":2,"
     "\"maxItems\":3}",
     "[1,2]" S "[1,2,2]", "[1]" S "[1,1]" S "[1,2,2,2]"},
    {"{\"type\":\"object\"}", "{}" S "{\"a\":{}, \"b\":1}", "[]" S "{\"b\" :1}"},
    {"{\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}},\"required\":["
     "\"b\"],\"type\":\"object\"}",
     "{\"b\":2}" S "{\"a\": 1, \"b\": 2}" S "{\"b\":2,\"c\":3}" S
     "{\n  \"a\": 1,\n  \"b\": 2,\n  \"c\": 3\n}",
     "{}" S "{\"a\":1}" S "{\"b\":2,\"a\":1}" S "{\"b\":2,}" S "{\"b\":2,\"d\":1}" S
     "{\"b\":2,\"b\":2}"},
    {"{\"type\":\"object\",\"properties\":{\"a\":true},\"additionalProperties\":{\"const\":0}}",
     "{}" S "{\"a\":null}" S "{\"b\":0,\"\":0}" S "{\"a\":1,\"ab\":0}",
     "{\"b\":1}" S "{\"b\":0,\"a\":0}" S "{\"b\":0,}"},
    {"{\"type\":\"object\",\"patternProperties\":{\"^p\":{\"const\":1},\"q$\":{\"type\":"
     "\"integer\"}},\"additionalProperties\":false}",
     "{\"p\":1,\"q\":5}" S "{\"pq\":1}", "{\"x\":1}" S "{\"pq\":2}" S "{\"p\":2}"},
    {"{\"type\":\"object\",\"required\":[\"z\"]}", "{\"z\":1}" S "{\"z\":1,\"y\":2}",
     "{}" S "{\"y\":1}"},
    {"{\"anyOf\":[{\"const\":1},{\"type\":\"string\"}]}", "1" S "\"x\"", "2"},
    {"{\"oneOf\":[{\"type\":\"integer\"},{\"const\":1}]}", "1" S "2", "null"},
    {"{\"type\":\"string\",\"anyOf\":[{\"maxLength\":1},{\"minLength\":3}]}", "\"a\"" S "\"abc\"",
     "\"ab\"" S "1"},
    {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"minimum\":1}}},{\"properties\":{"
     "\"a\":{\"type\":\"integer\",\"maximum\":2},\"b\":{\"const\":0}},\"required\":[\"b\"]}]}",
     "{\"a\":1,\"b\":0}" S "{\"b\":0}", "{\"a\":3,\"b\":0}" S "{\"a\":1}"},
    {"{\"$ref\":\"#/$defs/x~1y%20z\",\"$defs\":{\"x/y z\":{\"const\":7}}}", "7", "8"},
    {"{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#\"}},\"additionalProperties\":false}",
     "{}" S "{\"n\":{\"n\":{}}}", "{\"n\":1}"},
    {"{\"title\":\"t\",\"description\":1,\"default\":2,\"examples\":[],\"$schema\":\"x\",\"$id\":"
     "\"y\",\"$comment\":\"c\",\"deprecated\":true,\"readOnly\":true,\"writeOnly\":true,\"type\":"
     "\"null\",\"uniqueItems\":false}",
     "null", "1"},
};

Test(grammar_schema, keywords)
{
    grammar_texts_expect_all(GRAMMAR_JSON_SCHEMA, CASES, sizeof CASES / sizeof *CASES);
}

Test(grammar_schema, any_object)
{
    static const struct grammar_case object = {"null", "{}" S "{\"a\": [true, {\"b\": null}]}",
                                               "[]" S "1"};
    grammar_texts_expect_all(GRAMMAR_JSON, &object, 1);
}

/* Bounds that no list meets: none is begun, since it could not end. */
Test(grammar_schema, lists_that_cannot_end_are_not_begun)
{
    static const char *const specs[] = {
        "{\"type\":[\"array\",\"null\"],\"items\":{\"type\":\"integer\"},\"minItems\":5,"
        "\"maxItems\":2}",
        "{\"type\":[\"array\",\"null\"],\"allOf\":[{\"minItems\":3},{\"maxItems\":2,"
        "\"prefixItems\":[true]}]}"};
    struct grammar_texts texts;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct error err = ERROR_INIT;
        struct grammar_matcher *matcher;
        struct grammar *grammar =
            grammar_texts_compile(&texts, GRAMMAR_JSON_SCHEMA, specs[i], &err);
        cr_assert_not_null(grammar, "%s", err.message);
        cr_assert(grammar_texts_allow(&texts, grammar, "null"));
        cr_assert_eq(grammar_matcher_create(&matcher, grammar, &err), 0);
        const uint32_t *mask = grammar_matcher_mask(matcher, &err);
        cr_assert_eq(mask[texts.bytes['['] / 32] >> texts.bytes['['] % 32 & 1, 0);
        grammar_matcher_free(matcher);
        grammar_release(grammar);
    }
    grammar_texts_close(&texts);
}

static const struct grammar_refusal REFUSED[] = {
    {"1", "$: expected a schema (an object, true or false), got a number"},
    {"false", "$: expected a schema that some value satisfies, got false"},
    {"{\"not\":{}}", "$.not: expected a keyword that is supported, got \"not\""},
    {"{\"properties\":{\"x\":{\"if\":{}}}}",
     "$.properties.x.if: expected a keyword that is supported, got \"if\""},
    {"{\"contains\":{}}", "$.contains: expected a keyword that is supported, got \"contains\""},
    {"{\"minumum\":1}", "$.minumum: expected a keyword that is supported, got \"minumum\""},
    {"{\"uniqueItems\":1}", "$.uniqueItems: expected true or false, got a number"},
    {"{\"items\":[{}]}", "$.items: expected a schema (an object, true or false), got a list"},
    {"{\"type\":\"text\"}",
     "$.type: expected null, boolean, integer, number, string, array or object, got \"text\""},
    {"{\"type\":1}", "$.type: expected a type or a list of types, got a number"},
    {"{\"minLength\":-1}", "$.minLength: expected an integer from 0 on, got a number"},
    {"{\"anyOf\":[]}", "$.anyOf: expected a list of at least one schema, got a list"},
    {"{\"$ref\":\"#/$defs/x\"}", "$.$ref: expected what leads to a schema, got \"#/$defs/x\""},
    {"{\"$ref\":\"http://x\"}",
     "$.$ref: expected what leads into this schema, by \"#...\" or an $id that it has, got "
     "\"http://x\""},
    {"{\"$ref\":\"#\"}", "$.$ref: expected a schema, got one that is defined by itself"},
    {"{\"items\":{\"pattern\":\"a(?<=b)\"}}",
     "$.items.pattern: offset 2: a lookbehind is not supported"},
    {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}",
     "$: expected what some text can match, got what none can"},
    {"{\"type\":\"string\",\"pattern\":\"^a$\",\"minLength\":2}",
     "$: expected what some text can match, got what none can"},
    {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}",
     "$: expected what some text can match, got what none can"},
    {"{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#\"}},\"required\":[\"n\"]}",
     "$: expected what some text can match, got what none can"},
    {"{\"type\":\"array\",\"minItems\":2,\"items\":{\"type\":\"string\",\"minLength\":2,"
     "\"maxLength\":1}}",
     "$: expected what some text can match, got what none can"},
};

Test(grammar_schema, refusals_name_the_place)
{
    grammar_texts_expect_refused(REFUSED, sizeof REFUSED / sizeof *REFUSED);
}
