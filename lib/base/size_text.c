/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/size_text.h"

#include <stdio.h>

const char *size_text(double bytes, char text[SIZE_TEXT])
{
    static const char *const UNITS[] = {"KiB", "MiB", "GiB", "TiB"};
    const double kibi = 1024;
    if (bytes < 10 * kibi) {
        snprintf(text, SIZE_TEXT, "%.0f bytes", bytes);
        return text;
    }
    int unit = 0;
    for (bytes /= kibi; bytes >= kibi && unit < 3; bytes /= kibi)
        unit++;
    snprintf(text, SIZE_TEXT, "%.1f %s", bytes, UNITS[unit]);
    return text;
}
