/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/operators.h"

#include "lib/jinja/format.h"
#include "lib/jinja/lexer.h"
#include "lib/jinja/search.h"

#include <math.h>
#include <string.h>

static const char *symbol(int op)
{
    switch (op) {
    case OP_FLOOR_DIVIDE:
        return "//";
    case OP_POWER:
        return "**";
    default: {
        static const char SYMBOLS[] = "+\0-\0*\0/\0%";
        for (size_t i = 0; i < sizeof SYMBOLS; i += 2)
            if (SYMBOLS[i] == op)
                return SYMBOLS + i;
        return "?";
    }
    }
}

static void refuse_undefined(struct run *run, struct value value)
{
    if (value.kind == VALUE_UNDEFINED)
        heap_fail(&run->heap, ERROR_INVALID, "%s", value.string->bytes);
}

static _Noreturn void refuse(struct run *run, int op, struct value a, struct value b)
{
    if (a.kind == VALUE_VIEW || b.kind == VALUE_VIEW)
        heap_fail(&run->heap, ERROR_INVALID, "%s of a view of a dict is not supported", symbol(op));
    refuse_undefined(run, a);
    refuse_undefined(run, b);
    heap_fail(&run->heap, ERROR_INVALID, "unsupported operand types for %s: '%s' and '%s'",
              symbol(op), value_type(a), value_type(b));
}

static _Noreturn void too_large(struct run *run)
{
    heap_fail(&run->heap, ERROR_INVALID, "integers of more than 64 bits are not supported");
}

/* Numbers. */

static struct value power_of_ints(struct run *run, int64_t base, int64_t exponent)
{
    int64_t result = 1;
    if (exponent < 0 && base == 0)
        heap_fail(&run->heap, ERROR_INVALID, "0 cannot be raised to a negative power");
    if (exponent < 0)
        return value_float(pow((double)base, (double)exponent));
    if (base == 1 || base == 0 || base == -1)
        return value_int(base == 0 ? exponent == 0 : exponent % 2 ? base : 1);
    for (int64_t i = 0; i < exponent; i++)
        if (__builtin_mul_overflow(result, base, &result))
            too_large(run);
    return value_int(result);
}

static void check_divisor(struct run *run, bool zero)
{
    if (zero)
        heap_fail(&run->heap, ERROR_INVALID, "division by zero");
}

static struct value with_ints(struct run *run, int op, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool overflow = false;
    switch (op) {
    case '+':
        overflow = __builtin_add_overflow(a, b, &result);
        break;
    case '-':
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
    case '*':
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
    case '/':
        check_divisor(run, b == 0);
        return value_float((double)((long double)a / (long double)b));
    case OP_POWER:
        return power_of_ints(run, a, b);
    default:
        check_divisor(run, b == 0);
        if (b == -1)
            return op == '%' ? value_int(0) : with_ints(run, '-', 0, a);
        result = op == '%' ? a % b : a / b;
        if (a % b != 0 && (a % b < 0) != (b < 0))
            result += op == '%' ? b : -1;
    }
    if (overflow)
        too_large(run);
    return value_int(result);
}

/* As CPython's float_divmod. */
static struct value divide_floats(int op, double a, double b)
{
    double rest = fmod(a, b), quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) {
        rest += b;
        quotient -= 1;
    } else if (rest == 0) {
        rest = copysign(0, b);
    }
    if (op == '%')
        return value_float(rest);
    if (quotient == 0)
        return value_float(copysign(0, a / b));
    double whole = floor(quotient);
    return value_float(quotient - whole > 0.5 ? whole + 1 : whole);
}

static struct value with_floats(struct run *run, int op, double a, double b)
{
    switch (op) {
    case '+':
        return value_float(a + b);
    case '-':
        return value_float(a - b);
    case '*':
        return value_float(a * b);
    case '/':
        check_divisor(run, b == 0);
        return value_float(a / b);
    case OP_POWER:
        if ((a < 0 && b != floor(b)) || (a == 0 && b < 0))
            heap_fail(&run->heap, ERROR_INVALID, "this power is not supported");
        if (isfinite(a) && isfinite(b) && isinf(pow(a, b)))
            heap_fail(&run->heap, ERROR_INVALID, "the result is too large");
        return value_float(pow(a, b));
    default:
        check_divisor(run, b == 0);
        return divide_floats(op, a, b);
    }
}

/* Texts and lists. */

/* Writes the text with HTML's entities, unless `safe` has made it. */
static void write_escaped(struct run *run, const struct string *string)
{
    static const char *const ENTITIES[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['\''] = "&#39;", ['"'] = "&#34;"};
    size_t begin = 0;
    heap_work(&run->heap, string->length);
    for (size_t at = 0; at < string->length && !string->markup; at++) {
        size_t c = (unsigned char)string->bytes[at];
        const char *entity = c < sizeof ENTITIES / sizeof *ENTITIES ? ENTITIES[c] : NULL;
        if (!entity)
            continue;
        output_part(run, string, begin, at);
        output_for(run, string, at, entity, strlen(entity));
        begin = at + 1;
    }
    output_part(run, string, begin, string->length);
}

struct value operators_escaped(struct run *run, const struct string *string)
{
    struct output own, *before = output_begin(run, &own);
    write_escaped(run, string);
    return value_markup(&run->heap, output_take(run, before));
}

static struct value joined_strings(struct run *run, struct value a, struct value b)
{
    struct output own, *before = output_begin(run, &own);
    if (value_is_markup(a) || value_is_markup(b)) {
        write_escaped(run, a.string);
        write_escaped(run, b.string);
        return value_markup(&run->heap, output_take(run, before));
    }
    output_string(run, a.string);
    output_string(run, b.string);
    return output_take(run, before);
}

static struct value joined(struct run *run, struct value a, struct value b)
{
    struct heap *heap = &run->heap;
    if (a.kind == VALUE_STRING)
        return joined_strings(run, a, b);
    struct list *both = value_new_list(heap, a.list->count + b.list->count);
    for (size_t i = 0; i < a.list->count; i++)
        value_push(heap, both, a.list->items[i]);
    for (size_t i = 0; i < b.list->count; i++)
        value_push(heap, both, b.list->items[i]);
    return value_list(a.kind, both);
}

static struct value repeated(struct run *run, struct value of, int64_t times)
{
    struct heap *heap = &run->heap;
    if (of.kind == VALUE_STRING) {
        struct output own, *before = output_begin(run, &own);
        for (int64_t i = 0; i < times; i++)
            output_string(run, of.string);
        struct value text = output_take(run, before);
        return value_is_markup(of) ? value_markup(heap, text) : text;
    }
    struct list *list = value_new_list(heap, 0);
    for (int64_t i = 0; i < times; i++) {
        heap_work(heap, 0);
        for (size_t j = 0; j < of.list->count; j++)
            value_push(heap, list, of.list->items[j]);
    }
    return value_list(of.kind, list);
}

static bool repeats(struct value value)
{
    return value.kind == VALUE_STRING || value.kind == VALUE_LIST || value.kind == VALUE_TUPLE;
}

struct value operators_binary(struct run *run, int op, struct value a, struct value b)
{
    heap_work(&run->heap, 0);
    if (value_is_int(a) && value_is_int(b))
        return with_ints(run, op, value_as_int(a), value_as_int(b));
    if (value_is_number(a) && value_is_number(b))
        return with_floats(run, op, value_as_float(a), value_as_float(b));
    if (op == '+' && a.kind == b.kind && repeats(a))
        return joined(run, a, b);
    if (op == '*' && repeats(a) && value_is_int(b))
        return repeated(run, a, value_as_int(b));
    if (op == '*' && value_is_int(a) && repeats(b))
        return repeated(run, b, value_as_int(a));
    if (op == '%' && a.kind == VALUE_STRING)
        return format_percent(run, a.string, b);
    refuse(run, op, a, b);
}

static struct value with_sign(struct run *run, struct value value, int sign)
{
    refuse_undefined(run, value);
    if (value.kind == VALUE_FLOAT)
        return value_float(sign * value.real);
    if (!value_is_int(value))
        heap_fail(&run->heap, ERROR_INVALID, "bad operand type for unary %c: '%s'",
                  sign < 0 ? '-' : '+', value_type(value));
    return with_ints(run, '*', value_as_int(value), sign);
}

struct value operators_negate(struct run *run, struct value value)
{
    return with_sign(run, value, -1);
}

struct value operators_plus(struct run *run, struct value value)
{
    return with_sign(run, value, 1);
}

/* Comparisons. */

bool operators_in(struct run *run, struct value item, struct value container)
{
    struct heap *heap = &run->heap;
    if (container.kind == VALUE_STRING) {
        refuse_undefined(run, item);
        if (item.kind != VALUE_STRING)
            heap_fail(heap, ERROR_INVALID, "'in <string>' requires string as left operand, not %s",
                      value_type(item));
        const size_t length = container.string->length;
        search_charge(run, item.string, 0, length);
        return search_first(run, container.string, item.string, 0, length) != SIZE_MAX;
    }
    if (container.kind == VALUE_DICT) {
        if (!value_hashable(heap, item))
            heap_fail(heap, ERROR_INVALID, "unhashable type: '%s'", value_type(item));
        return value_find(heap, container.dict, item) != NULL;
    }
    const struct list *items = value_items(heap, container);
    for (size_t i = 0; i < items->count; i++)
        if (value_equal(heap, items->items[i], item))
            return true;
    return false;
}

bool operators_compare(struct run *run, enum comparison comparison, struct value a, struct value b)
{
    static const char *const SYMBOLS[] = {[COMPARE_LESS] = "<",
                                          [COMPARE_LESS_EQUAL] = "<=",
                                          [COMPARE_GREATER] = ">",
                                          [COMPARE_GREATER_EQUAL] = ">="};
    if (comparison == COMPARE_EQUAL || comparison == COMPARE_NOT_EQUAL)
        return value_equal(&run->heap, a, b) == (comparison == COMPARE_EQUAL);
    if (comparison == COMPARE_IN || comparison == COMPARE_NOT_IN)
        return operators_in(run, a, b) == (comparison == COMPARE_IN);
    int order = value_compare(&run->heap, a, b, SYMBOLS[comparison]);
    if (order == VALUE_UNORDERED)
        return false;
    switch (comparison) {
    case COMPARE_LESS:
        return order < 0;
    case COMPARE_LESS_EQUAL:
        return order <= 0;
    case COMPARE_GREATER:
        return order > 0;
    default:
        return order >= 0;
    }
}
