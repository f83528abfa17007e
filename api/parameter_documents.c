/* SPDX-License-Identifier: Apache-2.0 */
#include "api/parameter_documents.h"

#include "api/parameter_table.h"

#include <math.h>
#include <string.h>

/* In the order of the documents. */
static const struct {
    enum parameters_api api;
    const char *schema;
    const char *before; /* of Markdown */
    const char *author; /* of the API; NULL: there are several, which rows name */
} APIS[] = {
    {PARAMETERS_COMPLETIONS, "CompletionRequest", "", NULL},
    {PARAMETERS_CHATS, "ChatRequest",
     "\n## Chats\n\nThese `POST /v1/chat/completions` has beside them, or with another "
     "meaning:\n\n",
     NULL},
    {PARAMETERS_MESSAGES, "MessagesRequest",
     "\n## Messages\n\nThese are all that `POST /v1/messages` has:\n\n", "Anthropic"},
    {PARAMETERS_RESPONSES, "ResponsesRequest",
     "\n## Responses\n\nThese are all that `POST /v1/responses` has:\n\n", "OpenAI"},
};
enum { NUM_APIS = sizeof APIS / sizeof *APIS };

/* Whether a chat has it as completions do. */
static bool is_as_completions(const struct parameter *row)
{
    return (row->apis & PARAMETERS_COMPLETIONS) && (row->apis & PARAMETERS_CHATS);
}

/* What is usual, where the API has such a value. */
static bool usual_of(const struct parameter *row, enum parameters_api api, double *usual)
{
    const bool holds = !row->usual_of || (row->usual_of & api);
    *usual = row->type == PARAMETER_NUMBER ? sampling_rows[row->number].usual : (double)row->usual;
    return row->type == PARAMETER_NUMBER || (holds && row->type == PARAMETER_BOOLEAN) ||
           (holds && row->type == PARAMETER_INTEGER && row->size > 0 && row->usual >= row->low &&
            row->usual <= row->high);
}

/* Lowest and highest; NAN: there is none. */
static void range_of(const struct parameter *row, double *low, double *high)
{
    *low = *high = (double)NAN;
    if (row->type == PARAMETER_NUMBER) {
        *low = sampling_rows[row->number].low;
        *high = sampling_rows[row->number].high;
    } else if (row->type == PARAMETER_INTEGER) {
        *low = row->low == INT64_MIN ? (double)NAN : (double)row->low;
        *high = row->high == INT64_MAX ? (double)NAN : (double)row->high;
    }
    if (*high >= INT32_MAX) /* whatever a client sends is below */
        *high = (double)NAN;
}

static bool is_whole(const struct parameter *row)
{
    return row->type == PARAMETER_INTEGER ||
           (row->type == PARAMETER_NUMBER && sampling_rows[row->number].whole);
}

/* The lowest is not allowed itself. */
static bool is_above(const struct parameter *row)
{
    return row->type == PARAMETER_NUMBER && sampling_rows[row->number].above;
}

static void print_values(FILE *out, const struct parameter *row, enum parameters_api api)
{
    static const char *const TYPES[] = {[PARAMETER_ANY] = "",
                                        [PARAMETER_BOOLEAN] = "boolean",
                                        [PARAMETER_INTEGER] = "integer",
                                        [PARAMETER_NUMBER] = "number",
                                        [PARAMETER_TEXT] = "text",
                                        [PARAMETER_IDS] = "token ids"};
    double low, high, usual;
    if (row->kind == PARAMETER_REFUSED && *row->nothing)
        fprintf(out, "`%s`", row->nothing);
    if (row->kind != PARAMETER_HONOURED)
        return;
    range_of(row, &low, &high);
    fputs(is_whole(row) ? "integer" : TYPES[row->type], out);
    if (!isnan(low))
        fprintf(out, " %s%g", is_above(row) ? "above " : "from ", low);
    if (!isnan(high))
        fprintf(out, " to %g", high);
    if (usual_of(row, api, &usual) && row->type == PARAMETER_BOOLEAN)
        fprintf(out, "; %s", usual != 0 ? "true" : "false");
    else if (usual_of(row, api, &usual))
        fprintf(out, "; %g", usual);
}

static void print_row(FILE *out, const struct parameter *row, int api)
{
    static const char *const KINDS[] = {"honoured", "refused", "harmless"};
    const bool own = !APIS[api].author || row->apis == (unsigned)APIS[api].api;
    const char *from = own                                      ? row->from
                       : row->authors & (unsigned)APIS[api].api ? APIS[api].author
                                                                : "";
    fprintf(out, "| `%s` | %s | %s | ", row->name, *from ? from : "regla", KINDS[row->kind]);
    print_values(out, row, APIS[api].api);
    fprintf(out, " | %s |\n", row->note);
}

void parameter_documents_markdown(FILE *out)
{
    for (int api = 0; api < NUM_APIS; api++) {
        fprintf(out,
                "%s| parameter | who has it | here | accepted values; default | |\n"
                "|---|---|---|---|---|\n",
                APIS[api].before);
        for (int i = 0; i < parameter_count; i++) {
            const struct parameter *row = &parameter_table[i];
            const bool said = APIS[api].api == PARAMETERS_CHATS && is_as_completions(row);
            if ((row->apis & (unsigned)APIS[api].api) && !said)
                print_row(out, row, api);
        }
    }
}

static json_t *number(double value)
{
    return value == floor(value) ? json_integer((json_int_t)value) : json_real(value);
}

/* {"type": [type, "null"]} */
static json_t *of_type(const char *type)
{
    return json_pack("{s:[s,s]}", "type", type, "null");
}

/* The values that ask for nothing. */
static json_t *accepted(const char *nothing)
{
    json_t *values = json_array();
    while (*nothing) {
        const size_t length = strcspn(nothing, " ");
        json_array_append_new(values, json_loadb(nothing, length, JSON_DECODE_ANY, NULL));
        nothing += length + (nothing[length] == ' ');
    }
    json_array_append_new(values, json_null());
    return json_pack("{s:o}", "enum", values);
}

static json_t *of_number(const struct parameter *row)
{
    double low, high;
    json_t *schema = of_type(is_whole(row) ? "integer" : "number");
    range_of(row, &low, &high);
    if (!isnan(low))
        json_object_set_new(schema, is_above(row) ? "exclusiveMinimum" : "minimum", number(low));
    if (!isnan(high))
        json_object_set_new(schema, "maximum", number(high));
    if (row->type == PARAMETER_INTEGER && row->low == INT64_MIN)
        json_object_set_new(schema, "format", json_string("int64"));
    return schema;
}

static json_t *of_component(const struct parameter *row)
{
    json_t *reference =
        json_pack("{s:o}", "$ref", json_sprintf("#/components/schemas/%s", row->schema));
    return row->needed ? reference : json_pack("{s:[o,{s:s}]}", "anyOf", reference, "type", "null");
}

static json_t *of_values(const struct parameter *row)
{
    if (row->kind == PARAMETER_REFUSED)
        return accepted(row->nothing);
    if (row->schema)
        return of_component(row);
    switch (row->type) {
    case PARAMETER_BOOLEAN:
        return of_type("boolean");
    case PARAMETER_INTEGER:
    case PARAMETER_NUMBER:
        return of_number(row);
    case PARAMETER_TEXT:
        return of_type("string");
    case PARAMETER_IDS:
        return json_pack("{s:[s,s],s:{s:s,s:i},s:i}", "type", "array", "null", "items", "type",
                         "integer", "minimum", 0, "minItems", row->may_be_empty ? 0 : 1);
    case PARAMETER_ANY:
        break;
    }
    return json_object();
}

static json_t *schema_of(const struct parameter *row, enum parameters_api api)
{
    json_t *schema = of_values(row);
    double usual;
    if (row->kind == PARAMETER_HONOURED && usual_of(row, api, &usual))
        json_object_set_new(schema, "default",
                            row->type == PARAMETER_BOOLEAN ? json_boolean(usual != 0)
                                                           : number(usual));
    const char *before = row->kind == PARAMETER_REFUSED ? "else refused" : "";
    if (*before || *row->note)
        json_object_set_new(
            schema, "description",
            json_sprintf("%s%s%s", before, *before && *row->note ? ": " : "", row->note));
    return schema;
}

int parameter_documents_schemas(FILE *out)
{
    json_t *schemas = json_object();
    for (int api = 0; api < NUM_APIS; api++) {
        json_t *properties = json_object();
        for (int i = 0; i < parameter_count; i++) {
            const struct parameter *row = &parameter_table[i];
            const bool said = APIS[api].api == PARAMETERS_CHATS && is_as_completions(row) &&
                              row->kind == PARAMETER_REFUSED;
            if ((row->apis & (unsigned)APIS[api].api) && row->kind != PARAMETER_HARMLESS && !said)
                json_object_set_new(properties, row->name, schema_of(row, APIS[api].api));
        }
        json_object_set_new(schemas, APIS[api].schema, properties);
    }
    const int result = json_dumpf(schemas, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(schemas);
    return result;
}
