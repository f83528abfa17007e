/* SPDX-License-Identifier: Apache-2.0 */
/* JSON Schemas as pydantic, zod and OpenAPI write them: bounds and multiples of numbers, names and
 * counts of members, items that differ, references through $id, annotations. */
#include "tests/unit/grammar_texts.h"

#define S "\x1f" /* between texts */
#define OBJECT "\"type\":\"object\","
#define ARRAY "\"type\":\"array\",\"uniqueItems\":true,"
#define DIGIT "{\"type\":\"integer\",\"minimum\":0,\"maximum\":9}"

static const struct grammar_case NUMBERS[] = {
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     "0" S "1" S "0.5" S "1.0" S "0.00" S "1.00000000000000" S "0.99999999999999",
     "-0" S "1.1" S "1.00000000000001" S "2" S "-0.1" S "00" S "1." S "1e0" S "0.000000000000000"},
    {"{\"type\":\"number\",\"minimum\":0}", "0" S "123456789012345" S "12345678901234.5",
     "1234567890123456" S "12345678901234.56" S "-1"},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":10.5}",
     "0.00000000000001" S "10.5" S "10.50" S "9.9", "0" S "0.0" S "10.51" S "11" S "-1"},
    {"{\"type\":\"number\",\"minimum\":-273.15,\"exclusiveMaximum\":-1.5}",
     "-273.15" S "-273" S "-1.51" S "-99.9", "-273.16" S "-1.5" S "-1" S "-1.50" S "0" S "2"},
    {"{\"type\":\"number\",\"minimum\":-0.5,\"maximum\":0.5}", "-0.5" S "-0.01" S "0" S "0.5",
     "-0" S "-0.0" S "-0.51" S "-1" S "0.6"},
    {"{\"type\":\"number\",\"exclusiveMaximum\":0}", "-0.1" S "-7", "0" S "-0" S "1"},
    {"{\"type\":\"number\",\"maximum\":0,\"minimum\":0}", "0" S "0.0", "-0" S "1" S "-1"},
    {"{\"type\":\"number\",\"minimum\":5,\"exclusiveMinimum\":true,\"maximum\":6,"
     "\"exclusiveMaximum\":false}",
     "5.1" S "6" S "6.0", "5" S "5.0" S "6.1"},
    {"{\"type\":\"number\",\"minimum\":0.30000000000000004,\"maximum\":0.31}",
     "0.31" S "0.3000000000001", "0.3" S "0.30000000000000" S "0.311"},
    {"{\"type\":\"number\",\"minimum\":1e17,\"maximum\":100000000000000002}",
     "100000000000000000" S "100000000000000002", "99999999999999999" S "100000000000000000.5"},
    {"{\"type\":\"number\",\"maximum\":1e300,\"minimum\":-1e300}", "999999999999999" S "-0.5",
     "1000000000000000" S "1e5"},
    {"{\"type\":[\"number\",\"null\"],\"minimum\":3,\"maximum\":2}", "null", "2" S "2.5" S "3"},
    {"{\"type\":\"integer\",\"multipleOf\":3}", "0" S "3" S "-9" S "111111111111111111",
     "1" S "10" S "-0" S "3.0" S "1111111111111111111"},
    {"{\"type\":\"integer\",\"multipleOf\":1000,\"minimum\":1500,\"maximum\":12500}",
     "2000" S "10000" S "12000", "0" S "1000" S "1500" S "13000" S "2500"},
    {"{\"type\":\"integer\",\"multipleOf\":0.5}", "1" S "-7", "1.5"},
    {"{\"type\":\"integer\",\"multipleOf\":2.5}", "0" S "5" S "-10", "2" S "2.5" S "6"},
    {"{\"type\":\"number\",\"multipleOf\":0.01}", "0" S "1.5" S "12.34" S "-0.07" S "3.10",
     "0.001" S "1.234" S "1e1"},
    {"{\"type\":\"number\",\"multipleOf\":0.25,\"exclusiveMinimum\":-1,\"maximum\":1}",
     "-0.75" S "0" S "0.5" S "1" S "1.00" S "0.50", "-1" S "0.3" S "1.25" S "0.2" S "0.1"},
    {"{\"type\":\"number\",\"multipleOf\":1}", "5" S "-5" S "0", "5.0" S "5.5"},
    {"{\"type\":\"number\",\"allOf\":[{\"multipleOf\":0.2},{\"multipleOf\":0.3}]}",
     "0" S "0.6" S "6" S "-1.2", "0.2" S "0.3" S "1"},
    {"{\"type\":\"integer\",\"multipleOf\":86400,\"minimum\":1}", "86400" S "172800" S "864000",
     "0" S "86401" S "8640"},
    {"{\"enum\":[0.3,0.25,2,1e300,-0.7,\"x\"],\"multipleOf\":0.1}",
     "0.3" S "2" S "1e+300" S "-0.7" S "\"x\"", "0.25"},
    {"{\"enum\":[1,2,3],\"maximum\":3,\"exclusiveMaximum\":true}", "1" S "2", "3"},
};

Test(grammar_written, numbers)
{
    grammar_texts_expect_all(GRAMMAR_JSON_SCHEMA, NUMBERS, sizeof NUMBERS / sizeof *NUMBERS);
}

static const struct grammar_case MEMBERS[] = {
    {"{" OBJECT "\"propertyNames\":{\"type\":\"string\"},\"additionalProperties\":" DIGIT "}",
     "{}" S "{\"a\":1,\"\":2}", "{\"a\":10}"},
    {"{" OBJECT "\"propertyNames\":{\"enum\":[\"a\",\"b\"]},\"additionalProperties\":" DIGIT "}",
     "{}" S "{\"a\":1}" S "{\"b\":1}" S "{\"a\":1,\"b\":2}",
     "{\"c\":1}" S "{\"b\":1,\"a\":1}" S "{\"a\":1,\"a\":1}" S "{\"a\":\"\"}"},
    {"{" OBJECT "\"propertyNames\":{\"$ref\":\"#/$defs/e\"},\"additionalProperties\":" DIGIT
     ",\"required\":[\"b\",\"a\"],\"$defs\":{\"e\":{\"type\":\"string\",\"enum\":[\"a\",\"b\"]}}}",
     "{\"b\":1,\"a\":2}", "{}" S "{\"a\":1}"},
    {"{" OBJECT "\"propertyNames\":{\"anyOf\":[{\"const\":\"a\"},{\"const\":\"b\"}]}}",
     "{}" S "{\"a\":null}", "{\"c\":1}"},
    {"{" OBJECT "\"propertyNames\":{\"pattern\":\"^[ab]+$\",\"maxLength\":2},"
     "\"properties\":{\"a\":{\"const\":0},\"x\":true},\"additionalProperties\":" DIGIT "}",
     "{\"a\":0,\"b\":1,\"ab\":5}", "{\"a\":1}" S "{\"x\":1}" S "{\"aba\":1}" S "{\"\":1}"},
    {"{" OBJECT "\"propertyNames\":{\"maxLength\":1},\"patternProperties\":{\"^p\":" DIGIT "},"
     "\"additionalProperties\":false}",
     "{}" S "{\"p\":1}", "{\"pq\":1}" S "{\"q\":1}"},
    {"{" OBJECT "\"propertyNames\":{\"type\":\"number\"}}", "{}", "{\"1\":1}"},
    {"{" OBJECT "\"propertyNames\":false}", "{}" S "{ }", "{\"a\":1}"},
    {"{" OBJECT "\"minProperties\":1,\"additionalProperties\":" DIGIT "}",
     "{\"a\":1}" S "{\"a\":1, \"b\":2}" S "{\n \"a\": 1\n}", "{}" S "{\"a\":1,}"},
    {"{" OBJECT "\"maxProperties\":2,\"additionalProperties\":" DIGIT "}",
     "{}" S "{\"a\":1}" S "{\"a\":1,\"b\":2}", "{\"a\":1,\"b\":2,\"c\":3}"},
    {"{" OBJECT "\"maxProperties\":0}", "{}" S "{ }", "{\"a\":1}"},
    {"{" OBJECT "\"properties\":{\"a\":" DIGIT ",\"b\":" DIGIT ",\"c\":" DIGIT
     "},\"required\":[\"b\"],\"minProperties\":2,\"additionalProperties\":false}",
     "{\"a\":1,\"b\":1}" S "{\"b\":1,\"c\":1}" S "{\"a\":1,\"b\":1,\"c\":1}",
     "{\"b\":1}" S "{\"a\":1,\"c\":1}" S "{\"a\":1}"},
    {"{" OBJECT "\"properties\":{\"a\":" DIGIT ",\"b\":" DIGIT ",\"c\":" DIGIT
     "},\"maxProperties\":2,\"additionalProperties\":false}",
     "{}" S "{\"a\":1,\"c\":1}" S "{\"b\":1,\"c\":1}" S "{\"c\":1}",
     "{\"a\":1,\"b\":1,\"c\":1}" S "{\"a\":1,}"},
    {"{" OBJECT "\"properties\":{\"a\":" DIGIT "},\"minProperties\":2,\"maxProperties\":3,"
     "\"additionalProperties\":" DIGIT "}",
     "{\"a\":1,\"b\":1}" S "{\"a\":1,\"b\":1,\"c\":1}",
     "{}" S "{\"a\":1}" S "{\"b\":1,\"c\":1}" S "{\"a\":1,\"b\":1,\"c\":1,\"d\":1}"},
    {"{" OBJECT "\"properties\":{\"a\":" DIGIT "},\"required\":[\"a\"],\"minProperties\":1}",
     "{\"a\":1}", "{}"},
    {"{\"enum\":[{},{\"a\":1},{\"bb\":1},{\"a\":1,\"b\":1}],\"minProperties\":1,"
     "\"maxProperties\":1,\"propertyNames\":{\"maxLength\":1}}",
     "{\"a\": 1}", "{}" S "{\"bb\": 1}" S "{\"a\": 1, \"b\": 1}"},
};

Test(grammar_written, members)
{
    grammar_texts_expect_all(GRAMMAR_JSON_SCHEMA, MEMBERS, sizeof MEMBERS / sizeof *MEMBERS);
}

static const struct grammar_case ITEMS[] = {
    {"{" ARRAY "\"items\":{\"enum\":[\"a\",\"b\",3]}}",
     "[]" S "[\"a\"]" S "[3,\"a\"]" S "[\"b\", 3, \"a\"]" S "[ 3\n]",
     "[\"a\",\"a\"]" S "[\"b\",3,\"b\"]" S "[\"a\",]" S "[4]"},
    {"{" ARRAY "\"items\":{\"enum\":[\"a\",\"b\",\"c\"]},\"minItems\":2,\"maxItems\":2}",
     "[\"c\",\"a\"]" S "[\"a\",\"b\"]", "[]" S "[\"a\"]" S "[\"a\",\"a\"]" S "[\"a\",\"b\",\"c\"]"},
    {"{" ARRAY "\"items\":{\"type\":[\"boolean\",\"null\"]}}", "[true,null,false]",
     "[null,null]" S "[true,true]"},
    {"{" ARRAY "\"items\":{\"anyOf\":[" DIGIT ",{\"const\":\"x\"}]},\"minItems\":2,\"maxItems\":3}",
     "[0,9]" S "[1,2,\"x\"]", "[9,0]" S "[1]" S "[1,1]" S "[1,2,3,4]"},
    {"{" ARRAY "\"items\":{\"enum\":[1,1.0,2]}}", "[2,1]", "[1,1]" S "[1.0]"},
    {"{" ARRAY "\"items\":{\"type\":\"string\"},\"maxItems\":1}", "[]" S "[\"q\"]", "[\"\",\"a\"]"},
    {"{\"anyOf\":[{" ARRAY "\"items\":{\"const\":1},\"minItems\":2},{\"type\":\"null\"}]}", "null",
     "[1]" S "[1,1]"},
    {"{\"enum\":[[1,2],[1,1],[1,1.0],[\"a\"]],\"uniqueItems\":true}", "[1, 2]" S "[\"a\"]",
     "[1, 1]" S "[1, 1.0]"},
};

Test(grammar_written, items_that_differ)
{
    grammar_texts_expect_all(GRAMMAR_JSON_SCHEMA, ITEMS, sizeof ITEMS / sizeof *ITEMS);
}

static const struct grammar_case REFERENCES[] = {
    {"{\"$id\":\"https://example.org/s\",\"$ref\":\"https://example.org/s#/$defs/n\",\"$defs\":{"
     "\"n\":{\"const\":1}}}",
     "1", "2"},
    {"{\"$id\":\"https://example.org/a/s\",\"$ref\":\"n\",\"$defs\":{\"x\":{\"$id\":\"n\","
     "\"$ref\":\"#/$defs/k\",\"$defs\":{\"k\":{\"const\":2}}},\"k\":{\"const\":3}}}",
     "2", "3"},
    {"{\"$id\":\"https://example.org/a/s\",\"$ref\":\"/b#/$defs/k\",\"$defs\":{\"x\":{\"$id\":"
     "\"https://example.org/b\",\"$defs\":{\"k\":{\"const\":4}}}}}",
     "4", "1"},
    {"{\"$ref\":\"#n\",\"$defs\":{\"x\":{\"$anchor\":\"n\",\"const\":5}}}", "5", "1"},
    {"{\"$ref\":\"urn:x:y\",\"$defs\":{\"x\":{\"$id\":\"urn:x:y\",\"const\":6}}}", "6", "1"},
    {"{\"$id\":\"s\",\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"s\"}},"
     "\"additionalProperties\":false}",
     "{\"a\":{}}", "{\"a\":1}"},
    /* an $id among values is no resource */
    {"{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"enum\":[{\"$id\":\"n\"}],\"default\":{\"$id\":"
     "\"n\"}}}}",
     "{\"$id\": \"n\"}", "1"},
};

Test(grammar_written, references)
{
    grammar_texts_expect_all(GRAMMAR_JSON_SCHEMA, REFERENCES,
                             sizeof REFERENCES / sizeof *REFERENCES);
}

static const struct grammar_case FORMATS[] = {
    {"{\"type\":\"string\",\"format\":\"duration\"}",
     "\"P1DT12H30M5S\"" S "\"PT5M\"" S "\"P3W\"" S "\"P1Y2M3D\"",
     "\"P\"" S "\"P1DT\"" S "\"P1H\"" S "\"PT1D\"" S "\"1D\""},
    {"{\"type\":\"string\",\"format\":\"ipv6\"}",
     "\"::\"" S "\"::1\"" S "\"1::\"" S "\"fe80::1:2\"" S "\"1:2:3:4:5:6:7:8\"" S "\"1::8\"" S
     "\"1:2:3:4:5:6:7::\"" S "\"::2:3:4:5:6:7:8\"",
     "\":\"" S "\"1\"" S "\"1::2::3\"" S "\"12345::\"" S "\"1:2:3:4:5:6:7:8:9\"" S "\":1\""},
    {"{\"type\":\"string\",\"format\":\"hostname\"}", "\"a\"" S "\"api-1.example.org\"",
     "\"\"" S "\"-a\"" S "\"a..b\"" S "\"a_b\""},
    {"{\"type\":\"string\",\"format\":\"uri\",\"maxLength\":2}", "\"a\"", "\"abc\""},
    {"{\"enum\":[\"a\",1],\"format\":\"uri\"}", "\"a\"" S "1", "2"},
};

#define EMAIL                                                                                    \
    "^(?!\\\\.)(?!.*\\\\.\\\\.)([A-Za-z0-9_'+\\\\-\\\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9" \
    "\\\\-]*\\\\.)+[A-Za-z]{2,}$"

static const struct grammar_case PATTERNS[] = {
    /* zod: z.email(), z.iso.duration(), z.hostname(); pydantic: Decimal */
    {"{\"type\":\"string\",\"format\":\"email\",\"pattern\":\"" EMAIL "\"}",
     "\"a.b+c@example.org\"", "\".a@b.cd\"" S "\"a..b@c.de\"" S "\"a@b\"" S "\"a@b.c\""},
    {"{\"pattern\":\"^P(?:(\\\\d+W)|(?!.*W)(?=\\\\d|T\\\\d)(\\\\d+Y)?(\\\\d+M)?(\\\\d+D)?(T(?="
     "\\\\d)("
     "\\\\d+H)?(\\\\d+M)?(\\\\d+([.,]\\\\d+)?S)?)?)$\",\"type\":\"string\"}",
     "\"P3W\"" S "\"P1D\"" S "\"P1YT2.5S\"" S "\"PT1H\"", "\"P\"" S "\"PT\"" S "\"P1DT\""},
    {"{\"type\":\"string\",\"pattern\":\"^(?=.{1,20}\\\\.?$)[a-z0-9]+(?:\\\\.[a-z0-9]+)*\\\\.?$\"}",
     "\"a.example.org.\"" S "\"a\"", "\"\"" S "\".a\"" S "\"abcdefghijklmnopqrstu\""},
    {"{\"type\":\"string\",\"pattern\":\"^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$\"}",
     "\"1\"" S "\"-0.5\"" S "\".5\"", "\"\"" S "\"-\"" S "\".\"" S "\"+.\""},
    {"{\"type\":\"string\",\"pattern\":\"^(?=.*[A-Z])(?=.*\\\\d)[!-~]{4,8}$\"}", "\"aB3.\"",
     "\"ab3.\"" S "\"aB.c\"" S "\"B3a\""},
    {"{\"type\":\"string\",\"pattern\":\"^(?!^[-+.]*$)[+-]?0*(?:\\\\d{2}$|(?=[\\\\d.]{1,6}0*$)"
     "\\\\d{0,3}\\\\.\\\\d{0,2}0*$)\"}",
     "\"12\"" S "\"1.25\"" S "\"-001.5\"" S "\"+.500\"",
     "\"123\"" S "\"1.255\"" S "\"-\"" S "\"12a\""},
    {"{\"type\":\"string\",\"pattern\":\"x(a$|b)\"}", "\"xa\"" S "\"yxb\"" S "\"xbq\"" S "\"xaxa\"",
     "\"xaq\"" S "\"a\""},
    {"{\"type\":\"string\",\"pattern\":\"^(?!(a|b$))[a-c]+$\"}", "\"ba\"" S "\"c\"",
     "\"b\"" S "\"a\"" S "\"ab\""},
    {"{\"type\":\"string\",\"pattern\":\"a(?!b)\"}", "\"a\"" S "\"xac\"" S "\"aba\"",
     "\"ab\"" S "\"b\""},
};

Test(grammar_written, patterns_with_lookaheads)
{
    grammar_texts_expect_all(GRAMMAR_JSON_SCHEMA, PATTERNS, sizeof PATTERNS / sizeof *PATTERNS);
}

Test(grammar_written, formats)
{
    grammar_texts_expect_all(GRAMMAR_JSON_SCHEMA, FORMATS, sizeof FORMATS / sizeof *FORMATS);
}

static unsigned annotations_of(const struct grammar_texts *texts, const char *spec)
{
    struct error err = ERROR_INIT;
    struct grammar *grammar = grammar_texts_compile(texts, GRAMMAR_JSON_SCHEMA, spec, &err);
    cr_assert_not_null(grammar, "%s: %s", spec, err.message);
    unsigned annotations = grammar_annotations(grammar);
    grammar_release(grammar);
    return annotations;
}

Test(grammar_written, annotations_are_counted)
{
    static const struct {
        const char *spec;
        unsigned annotations;
    } cases[] = {
        {"{\"title\":\"t\",\"examples\":[1],\"$id\":\"x\",\"nullable\":false}", 0},
        {"{\"type\":\"string\",\"format\":\"date\"}", 0},
        {"{\"type\":\"string\",\"format\":\"uri\"}", 1u << ANNOTATION_FORMAT},
        {"{\"type\":\"string\",\"nullable\":true,\"example\":1}",
         1u << ANNOTATION_NULLABLE | 1u << ANNOTATION_EXAMPLE},
        {"{\"items\":{\"x-order\":1,\"contentMediaType\":\"a/b\"}}",
         1u << ANNOTATION_EXTENSION | 1u << ANNOTATION_CONTENT},
        {"{\"oneOf\":[{\"const\":1,\"id\":\"A\"}],\"discriminator\":{\"propertyName\":\"k\"}}",
         1u << ANNOTATION_DISCRIMINATOR | 1u << ANNOTATION_OTHER},
    };
    struct grammar_texts texts;
    grammar_texts_open(&texts, GRAMMAR_MODEL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_eq(annotations_of(&texts, cases[i].spec), cases[i].annotations, "%s",
                     cases[i].spec);
    grammar_texts_close(&texts);
}

static const struct grammar_refusal REFUSED[] = {
    {"{\"type\":\"number\",\"minimum\":1e-20,\"maximum\":1e-19}",
     "$.minimum: expected bounds that a number of at most 15 digits meets"},
    {"{\"multipleOf\":0}", "$.multipleOf: expected a number above 0, got a number"},
    {"{\"type\":\"integer\",\"multipleOf\":1000003}",
     "$.multipleOf: expected a number whose remainders take at most 32768 states"},
    {"{\"type\":\"number\",\"multipleOf\":1e-15}",
     "$.multipleOf: expected at most 14 digits behind the point"},
    {"{\"type\":\"integer\",\"multipleOf\":9007199254740993}",
     "$.multipleOf: expected what is at most 1073741824 times a power of 10, got more"},
    {"{\"type\":\"object\",\"minProperties\":2}",
     "$.minProperties: expected names that are listed"},
    {"{\"type\":\"object\",\"propertyNames\":{\"anyOf\":[{\"maxLength\":2},{\"const\":\"x\"}]}}",
     "$.propertyNames.anyOf: expected one of at most 64 names here, got free ones"},
    {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\"}}",
     "$.uniqueItems: expected \"items\" of at most 64 values"},
    {"{\"uniqueItems\":true}", "$.uniqueItems: expected \"items\" of at most 64 values"},
    {"{\"$ref\":\"https://example.org/s\"}", "$.$ref: expected what leads into this schema"},
    {"{\"$id\":\"a\",\"$ref\":\"a\"}",
     "$.$ref: expected a schema, got one that is defined by itself"},
};

Test(grammar_written, refusals_say_why)
{
    grammar_texts_expect_refused(REFUSED, sizeof REFUSED / sizeof *REFUSED);
}
