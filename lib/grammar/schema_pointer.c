/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/schema_pointer.h"

#include "lib/grammar/charset.h"

/* One step of a JSON pointer in a URI: ~1 is a slash, ~0 a tilde, %41 a byte. Returns the length of
 * what it names, *used that of the step; -1: it is too long. */
static int read_step(const char *step, char *name, size_t size, size_t *used)
{
    size_t length = 0, at = 0;
    while (step[at] && step[at] != '/' && length + 1 < size) {
        char c = step[at++];
        if (c == '%' && charset_hex_digit(step[at]) >= 0 && charset_hex_digit(step[at + 1]) >= 0) {
            c = (char)(charset_hex_digit(step[at]) * 16 + charset_hex_digit(step[at + 1]));
            at += 2;
        }
        if (c == '~' && (step[at] == '0' || step[at] == '1'))
            c = step[at++] == '0' ? '~' : '/';
        name[length++] = c;
    }
    *used = at;
    return step[at] && step[at] != '/' ? -1 : (int)length;
}

/* What `name` [length] is in a value of the document. The place's key is the value's own. */
static const json_t *find_step(const json_t *value, const char *name, int length)
{
    if (json_is_object(value))
        return json_object_getn(value, name, (size_t)length);
    if (!json_is_array(value) || length == 0 || length > 6)
        return NULL;
    size_t index = 0;
    for (int i = 0; i < length; i++) {
        if (name[i] < '0' || name[i] > '9')
            return NULL;
        index = index * 10 + (size_t)(name[i] - '0');
    }
    return json_array_get(value, index);
}

const json_t *schema_pointer(const json_t *root, const char *ref)
{
    char name[256];
    const json_t *value = root;
    if (ref[0] != '#' || (ref[1] && ref[1] != '/'))
        return NULL;
    for (const char *at = ref + 1; value && *at;) {
        size_t used;
        int length = read_step(at + 1, name, sizeof name, &used);
        value = length < 0 ? NULL : find_step(value, name, length);
        at += used + 1;
    }
    return value;
}
