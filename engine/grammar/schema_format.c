/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/schema_format.h"

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
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

static const struct {
    const char *name, *pattern;
} FORMATS[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"email", ATOM "(\\." ATOM ")*@" LABEL "(\\." LABEL ")+"},
    {"ipv4", BYTE "(\\." BYTE "){3}"},
};

const struct dfa *schema_format(const struct schema_document *document,
                                const struct schema_place *place, const char *name)
{
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (strcmp(FORMATS[i].name, name) == 0)
            return schema_pattern(document, place, "format", FORMATS[i].pattern,
                                  strlen(FORMATS[i].pattern), false);
    schema_refuse(document, place, "format", ERROR_UNSUPPORTED,
                  "expected date, time, date-time, uuid, email or ipv4, got \"%.64s\"", name);
    return NULL;
}
