/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/token_list.h"

#include "lib/text/buffer.h"

#include <stdlib.h>

int token_list_push(struct token_list *list, int32_t id, struct error *err)
{
    if (list->count == list->capacity &&
        array_grow((void **)&list->ids, &list->capacity, list->count + 1, sizeof *list->ids, err))
        return -1;
    list->ids[list->count++] = id;
    return 0;
}

void token_list_clear(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}
