/* SPDX-License-Identifier: Apache-2.0 */
/* Calls filters. The filters about lists are here for the table in filters.c. */
#ifndef LIB_JINJA_FILTERS_H
#define LIB_JINJA_FILTERS_H

#include "lib/jinja/run.h"

/* What the filter makes of `self`. */
struct value filters_call(struct run *run, const struct builtin *filter, struct value self,
                          const struct args *args);

typedef struct value filter_function(struct run *run, struct value self, const struct value *given,
                                     const struct args *args);

filter_function filters_first, filters_last, filters_length, filters_list, filters_reverse;
filter_function filters_join, filters_items, filters_map, filters_select, filters_reject;
filter_function filters_selectattr, filters_rejectattr, filters_sort, filters_dictsort;
filter_function filters_batch, filters_slice, filters_groupby;
filter_function filters_unique, filters_min, filters_max, filters_sum;

#endif
