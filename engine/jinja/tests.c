/* SPDX-License-Identifier: Apache-2.0 */
/* The tests: what stands behind `is`. */
#include "engine/jinja/builtins.h"
#include "engine/jinja/operators.h"
#include "engine/jinja/strings.h"

#define TEST(name)                                                                          \
    static struct value name(struct run *run, struct value self, const struct value *given, \
                             const struct args *args)
#define UNUSED (void)run, (void)self, (void)given, (void)args

TEST(is_defined)
{
    UNUSED;
    return value_bool(self.kind != VALUE_UNDEFINED);
}

TEST(is_undefined)
{
    UNUSED;
    return value_bool(self.kind == VALUE_UNDEFINED);
}

TEST(is_none)
{
    UNUSED;
    return value_bool(self.kind == VALUE_NONE);
}

TEST(is_boolean)
{
    UNUSED;
    return value_bool(self.kind == VALUE_BOOL);
}

TEST(is_true)
{
    UNUSED;
    return value_bool(self.kind == VALUE_BOOL && self.truth);
}

TEST(is_false)
{
    UNUSED;
    return value_bool(self.kind == VALUE_BOOL && !self.truth);
}

TEST(is_integer)
{
    UNUSED;
    return value_bool(self.kind == VALUE_INT);
}

TEST(is_float)
{
    UNUSED;
    return value_bool(self.kind == VALUE_FLOAT);
}

TEST(is_number)
{
    UNUSED;
    return value_bool(value_is_number(self));
}

TEST(is_string)
{
    UNUSED;
    return value_bool(self.kind == VALUE_STRING);
}

TEST(is_mapping)
{
    UNUSED;
    return value_bool(self.kind == VALUE_DICT);
}

static bool iterates(struct value value)
{
    return value_length(value) >= 0 || value.kind == VALUE_ITERATOR || value.kind == VALUE_LOOP;
}

TEST(is_iterable)
{
    UNUSED;
    return value_bool(iterates(self));
}

TEST(is_sequence)
{
    UNUSED;
    return value_bool(self.kind == VALUE_STRING || self.kind == VALUE_LIST ||
                      self.kind == VALUE_TUPLE || self.kind == VALUE_RANGE ||
                      self.kind == VALUE_DICT || self.kind == VALUE_UNDEFINED);
}

TEST(is_callable)
{
    UNUSED;
    return value_bool(self.kind == VALUE_MACRO || self.kind == VALUE_FUNCTION ||
                      self.kind == VALUE_METHOD || self.kind == VALUE_UNDEFINED ||
                      self.kind == VALUE_LOOP);
}

static int64_t remainder_of(struct run *run, struct value self, int64_t by)
{
    struct value rest = operators_binary(run, '%', self, value_int(by));
    return value_is_int(rest) ? value_as_int(rest) : rest.real == 0 ? 0 : rest.real == 1 ? 1 : 2;
}

TEST(is_odd)
{
    UNUSED;
    return value_bool(remainder_of(run, self, 2) == 1);
}

TEST(is_even)
{
    UNUSED;
    return value_bool(remainder_of(run, self, 2) == 0);
}

TEST(is_divisible)
{
    UNUSED;
    return value_bool(remainder_of(run, self, strings_given_int(run, given[0], 0, "divisibleby")) ==
                      0);
}

TEST(is_lower)
{
    UNUSED;
    struct args none = {0};
    return builtin_call(run, builtin_find(builtins_string_methods, "islower"),
                        value_of((struct string *)strings_given(run, self, "lower")), &none);
}

TEST(is_upper)
{
    UNUSED;
    struct args none = {0};
    return builtin_call(run, builtin_find(builtins_string_methods, "isupper"),
                        value_of((struct string *)strings_given(run, self, "upper")), &none);
}

TEST(is_same)
{
    UNUSED;
    if (self.kind != given[0].kind)
        return value_bool(false);
    if (value_is_number(self) || self.kind == VALUE_NONE)
        return value_bool(value_equal(&run->heap, self, given[0]));
    heap_fail(&run->heap, ERROR_INVALID, "sameas of a %s is not supported", value_type(self));
}

TEST(is_equal)
{
    UNUSED;
    return value_bool(operators_compare(run, COMPARE_EQUAL, self, given[0]));
}

TEST(is_not_equal)
{
    UNUSED;
    return value_bool(operators_compare(run, COMPARE_NOT_EQUAL, self, given[0]));
}

TEST(is_less)
{
    UNUSED;
    return value_bool(operators_compare(run, COMPARE_LESS, self, given[0]));
}

TEST(is_less_equal)
{
    UNUSED;
    return value_bool(operators_compare(run, COMPARE_LESS_EQUAL, self, given[0]));
}

TEST(is_greater)
{
    UNUSED;
    return value_bool(operators_compare(run, COMPARE_GREATER, self, given[0]));
}

TEST(is_greater_equal)
{
    UNUSED;
    return value_bool(operators_compare(run, COMPARE_GREATER_EQUAL, self, given[0]));
}

TEST(is_in)
{
    UNUSED;
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
