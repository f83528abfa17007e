/* SPDX-License-Identifier: Apache-2.0 */
/* What templates may call by name. The tables end with an entry without a name. */
#ifndef LIB_JINJA_BUILTINS_H
#define LIB_JINJA_BUILTINS_H

#include "lib/jinja/run.h"

/* Begins the function of a builtin, whose body begins with BUILTIN_UNUSED. */
#define BUILTIN(name)                                                                \
    struct value name(struct run *run, struct value self, const struct value *given, \
                      const struct args *args)
#define BUILTIN_UNUSED (void)run, (void)self, (void)given, (void)args

extern const struct builtin builtins_filters[];
extern const struct builtin builtins_tests[];
extern const struct builtin builtins_functions[];

/* Methods by the kind of value that has them. */
extern const struct builtin builtins_string_methods[];
extern const struct builtin builtins_list_methods[];
extern const struct builtin builtins_tuple_methods[]; /* and of ranges */
extern const struct builtin builtins_dict_methods[];
extern const struct builtin builtins_loop_methods[];

#endif
