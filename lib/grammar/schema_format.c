/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/schema_format.h"

#include <string.h>

/* Years from 1000 on; the 29th of February in leap years only. */
#define YEAR "[1-9][0-9]{3}"
#define FOURTH "(0[48]|[2468][048]|[13579][26])" /* the last two digits of a leap year, but 00 */
#define LEAP_YEAR "([1-9][0-9]" FOURTH "|(1[26]|[2468][048]|[3579][26])00)"
#define DATE                                                                             \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]" \
    "|30)|02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP_YEAR "-02-29)"
#define CLOCK "([01][0-9]|2[0-3]):[0-5][0-9]"
#define TIME CLOCK ":[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]" CLOCK ")"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define SHORT_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,60}[A-Za-z0-9])?"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

#define SOME "[0-9]{1,9}" /* of a duration */
#define CLOCK_PART "T(" SOME "H(" SOME "M(" SOME "S)?)?|" SOME "M(" SOME "S)?|" SOME "S)"
#define DATE_PART "(" SOME "Y(" SOME "M(" SOME "D)?)?|" SOME "M(" SOME "D)?|" SOME "D)"
#define HEX "[0-9a-fA-F]{1,4}"
#define IPV6                                                                                   \
    "(" HEX ":){7}" HEX "|(" HEX ":){1,7}:|(" HEX ":){1,6}:" HEX "|(" HEX ":){1,5}(:" HEX      \
    "){2}|(" HEX ":){1,4}(:" HEX "){2,3}|(" HEX ":){1,3}(:" HEX "){2,4}|(" HEX ":){1,2}(:" HEX \
    "){2,5}|" HEX ":(:" HEX "){2,6}|:((:" HEX "){1,7}|:)"

static const struct {
    const char *name, *pattern;
} FORMATS[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"email", ATOM "(\\." ATOM ")*@" LABEL "(\\." LABEL ")+"},
    {"ipv4", BYTE "(\\." BYTE "){3}"},
    {"ipv6", IPV6},
    {"hostname", SHORT_LABEL "(\\." SHORT_LABEL "){0,3}"}, /* at most 253 characters */
    {"duration", "P(" SOME "W|" DATE_PART "(" CLOCK_PART ")?|" CLOCK_PART ")"},
};

static const char *pattern_of(const char *name)
{
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (strcmp(FORMATS[i].name, name) == 0)
            return FORMATS[i].pattern;
    return NULL;
}

bool schema_format_known(const char *name)
{
    return pattern_of(name) != NULL;
}

const struct dfa *schema_format(const struct schema_document *document,
                                const struct schema_place *place, const char *name)
{
    const char *pattern = pattern_of(name);
    return schema_pattern(document, place, "format", pattern, strlen(pattern), false);
}
