/* SPDX-License-Identifier: Apache-2.0 */
/* Copies sessions from one place to another, or moves them. Each is there as a whole before it is
 * removed here; a move that was cut off is finished by the same move again. */
#ifndef SERVER_STATES_SHELF_MOVE_H
#define SERVER_STATES_SHELF_MOVE_H

#include "server/states/shelf.h"

struct shelf_move {
    struct shelf *from, *to;
    struct shelf_filter filter;
    bool removes, replaces;
    /* Where the places have other secrets, an owner is known by the key alone: [num_keys]; none:
     * the server has no API keys. */
    char *const *keys;
    size_t num_keys;
    /* What became of them. Only those of `put` and `same` are removed. */
    int64_t put, same, other, busy, damaged, unknown; /* unknown: of none of the keys */
};

int shelf_move(struct shelf_move *move, struct error *err);

#endif
