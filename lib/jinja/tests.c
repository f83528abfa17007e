/* SPDX-License-Identifier: Apache-2.0 */
/* The tests: what stands behind `is`. */
#include "lib/jinja/builtins.h"
#include "lib/jinja/operators.h"
#include "lib/jinja/print.h"
#include "lib/jinja/strings.h"

static BUILTIN(is_defined)
{
    BUILTIN_UNUSED;
    return value_bool(self.kind != VALUE_UNDEFINED);
}

static BUILTIN(is_undefined)
{
    BUILTIN_UNUSED;
    return value_bool(self.kind == VALUE_UNDEFINED);
}

static BUILTIN(is_none)
{
    BUILTIN_UNUSED;
    return value_bool(self.kind == VALUE_NONE);
}

static BUILTIN(is_boolean)
{
    BUILTIN_UNUSED;
    return value_bool(self.kind == VALUE_BOOL);
}

static BUILTIN(is_true)
{
    BUILTIN_UNUSED;
    return value_bool(self.kind == VALUE_BOOL && self.truth);
}

static BUILTIN(is_false)
{
    BUILTIN_UNUSED;
    return value_bool(self.kind == VALUE_BOOL && !self.truth);
}

static BUILTIN(is_integer)
{
    BUILTIN_UNUSED;
    return value_bool(self.kind == VALUE_INT);
}

static BUILTIN(is_float)
{
    BUILTIN_UNUSED;
    return value_bool(self.kind == VALUE_FLOAT);
}

static BUILTIN(is_number)
{
    BUILTIN_UNUSED;
    return value_bool(value_is_number(self));
}

static BUILTIN(is_string)
{
    BUILTIN_UNUSED;
    return value_bool(self.kind == VALUE_STRING);
}

static BUILTIN(is_mapping)
{
    BUILTIN_UNUSED;
    return value_bool(self.kind == VALUE_DICT);
}

static bool iterates(struct value value)
{
    return value_length(value) >= 0 || value.kind == VALUE_ITERATOR || value.kind == VALUE_LOOP;
}

static BUILTIN(is_iterable)
{
    BUILTIN_UNUSED;
    return value_bool(iterates(self));
}

static BUILTIN(is_sequence)
{
    BUILTIN_UNUSED;
    return value_bool(self.kind == VALUE_STRING || self.kind == VALUE_LIST ||
                      self.kind == VALUE_TUPLE || self.kind == VALUE_RANGE ||
                      self.kind == VALUE_DICT || self.kind == VALUE_UNDEFINED);
}

static BUILTIN(is_callable)
{
    BUILTIN_UNUSED;
    return value_bool(self.kind == VALUE_MACRO || self.kind == VALUE_FUNCTION ||
                      self.kind == VALUE_METHOD || self.kind == VALUE_UNDEFINED ||
                      self.kind == VALUE_LOOP);
}

static int64_t remainder_of(struct run *run, struct value self, int64_t by)
{
    struct value rest = operators_binary(run, '%', self, value_int(by));
    return value_is_int(rest) ? value_as_int(rest) : rest.real == 0 ? 0 : rest.real == 1 ? 1 : 2;
}

static BUILTIN(is_odd)
{
    BUILTIN_UNUSED;
    return value_bool(remainder_of(run, self, 2) == 1);
}

static BUILTIN(is_even)
{
    BUILTIN_UNUSED;
    return value_bool(remainder_of(run, self, 2) == 0);
}

static BUILTIN(is_divisible)
{
    BUILTIN_UNUSED;
    return value_bool(remainder_of(run, self, strings_given_int(run, given[0], 0, "divisibleby")) ==
                      0);
}

static BUILTIN(is_lower)
{
    BUILTIN_UNUSED;
    struct args none = {0};
    return builtin_call(run, builtin_find(builtins_string_methods, "islower"),
                        print_to_string(run, self), &none);
}

static BUILTIN(is_upper)
{
    BUILTIN_UNUSED;
    struct args none = {0};
    return builtin_call(run, builtin_find(builtins_string_methods, "isupper"),
                        print_to_string(run, self), &none);
}

static BUILTIN(is_escaped)
{
    BUILTIN_UNUSED;
    return value_bool(value_is_markup(self));
}

static bool names_one(struct run *run, struct value name, const struct builtin *table)
{
    if (!value_hashable(&run->heap, name))
        heap_fail(&run->heap, ERROR_INVALID, "unhashable type: '%s'", value_type(name));
    return name.kind == VALUE_STRING && builtin_find(table, name.string->bytes);
}

static BUILTIN(is_filter)
{
    BUILTIN_UNUSED;
    return value_bool(
        names_one(run, self, builtins_filters) ||
        (self.kind == VALUE_STRING && builtin_lacks(BUILTIN_LACKS_FILTER, self.string->bytes)));
}

static BUILTIN(is_test)
{
    BUILTIN_UNUSED;
    return value_bool(names_one(run, self, builtins_tests));
}

static BUILTIN(is_same)
{
    BUILTIN_UNUSED;
    if (self.kind != given[0].kind)
        return value_bool(false);
    if (value_is_number(self) || self.kind == VALUE_NONE)
        return value_bool(value_equal(&run->heap, self, given[0]));
    heap_fail(&run->heap, ERROR_INVALID, "sameas of a %s is not supported", value_type(self));
}

static BUILTIN(is_equal)
{
    BUILTIN_UNUSED;
    return value_bool(operators_compare(run, COMPARE_EQUAL, self, given[0]));
}

static BUILTIN(is_not_equal)
{
    BUILTIN_UNUSED;
    return value_bool(operators_compare(run, COMPARE_NOT_EQUAL, self, given[0]));
}

static BUILTIN(is_less)
{
    BUILTIN_UNUSED;
    return value_bool(operators_compare(run, COMPARE_LESS, self, given[0]));
}

static BUILTIN(is_less_equal)
{
    BUILTIN_UNUSED;
    return value_bool(operators_compare(run, COMPARE_LESS_EQUAL, self, given[0]));
}

static BUILTIN(is_greater)
{
    BUILTIN_UNUSED;
    return value_bool(operators_compare(run, COMPARE_GREATER, self, given[0]));
}

static BUILTIN(is_greater_equal)
{
    BUILTIN_UNUSED;
    return value_bool(operators_compare(run, COMPARE_GREATER_EQUAL, self, given[0]));
}

static BUILTIN(is_in)
{
    BUILTIN_UNUSED;
    return value_bool(operators_in(run, self, given[0]));
}

const struct builtin builtins_tests[] = {
    {"defined", is_defined, "", 0},
    {"undefined", is_undefined, "", 0},
    {"none", is_none, "", 0},
    {"boolean", is_boolean, "", 0},
    {"true", is_true, "", 0},
    {"false", is_false, "", 0},
    {"integer", is_integer, "", 0},
    {"float", is_float, "", 0},
    {"number", is_number, "", 0},
    {"string", is_string, "", 0},
    {"mapping", is_mapping, "", 0},
    {"iterable", is_iterable, "", 0},
    {"sequence", is_sequence, "", 0},
    {"callable", is_callable, "", 0},
    {"odd", is_odd, "", 0},
    {"even", is_even, "", 0},
    {"divisibleby", is_divisible, "num", 1},
    {"lower", is_lower, "", 0},
    {"upper", is_upper, "", 0},
    {"escaped", is_escaped, "", 0},
    {"filter", is_filter, "", 0},
    {"test", is_test, "", 0},
    {"sameas", is_same, "other", 1},
    {"in", is_in, "seq", 1},
    {"eq", is_equal, "other", 1},
    {"equalto", is_equal, "other", 1},
    {"==", is_equal, "other", 1},
    {"ne", is_not_equal, "other", 1},
    {"!=", is_not_equal, "other", 1},
    {"lt", is_less, "other", 1},
    {"lessthan", is_less, "other", 1},
    {"<", is_less, "other", 1},
    {"le", is_less_equal, "other", 1},
    {"<=", is_less_equal, "other", 1},
    {"gt", is_greater, "other", 1},
    {"greaterthan", is_greater, "other", 1},
    {">", is_greater, "other", 1},
    {"ge", is_greater_equal, "other", 1},
    {">=", is_greater_equal, "other", 1},
    {NULL, NULL, NULL, 0},
};
