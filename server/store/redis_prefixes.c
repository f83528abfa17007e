/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_prefixes.h"

#include "server/store/redis_keys.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_scripts.h"

int redis_prefixes_find(struct store_place *place, struct store_op *op, struct error *err)
{
    struct store_prefixes *counts = &place->accounts->report.prefixes;
    op->which = op->num_names;
    int result = redis_link_open(&place->link, false, err);
    redis_place_tell(place, result != 0 ? err : NULL);
    if (result != 0)
        return -1;
    for (size_t i = 0; i < op->num_names; i++) {
        struct redis_command command;
        char key[REDIS_KEY_SIZE];
        redis_key_state(key, place->model, op->names[i], ":prefix", -1);
        redis_command_begin(&command, "EXISTS");
        redis_command_text(&command, key);
        redis_link_send(&place->link, &command);
    }
    bool answered = false;
    for (size_t i = 0; i < op->num_names; i++) {
        struct error failed = ERROR_INIT;
        redisReply *reply = redis_link_receive(&place->link, &failed);
        answered |= reply != NULL;
        if (reply == NULL && err->code == ERROR_NONE)
            *err = failed;
        if (reply != NULL && reply->type == REDIS_REPLY_INTEGER && reply->integer == 1 &&
            op->which == op->num_names)
            op->which = i;
        freeReplyObject(reply);
    }
    const bool found = op->which < op->num_names;
    if (answered) /* names are spread over the nodes of a cluster, of which one may be away */
        error_clear(err);
    if (err->code == ERROR_NONE)
        store_accounts_count(place->accounts, found ? &counts->found : &counts->missing, 1);
    return err->code == ERROR_NONE ? 0 : -1;
}

int redis_prefixes_ask(struct store_place *place, const char *key, int64_t bytes,
                       enum redis_prefix_want *want, struct error *err)
{
    struct redis_command command;
    redis_scripts_begin(&command, &redis_script_prefix, 1);
    redis_command_text(&command, key);
    redis_command_number(&command, bytes);
    redisReply *reply = redis_link_ask(&place->link, &command, err);
    if (reply == NULL)
        return -1;
    *want = redis_rows_is(reply, 0, "wanted")  ? REDIS_PREFIX_WANTED
            : redis_rows_is(reply, 0, "there") ? REDIS_PREFIX_THERE
                                               : REDIS_PREFIX_FULL;
    freeReplyObject(reply);
    return 0;
}

void redis_prefixes_wrote(struct store_place *place, int64_t bytes)
{
    struct store_prefixes *counts = &place->accounts->report.prefixes;
    store_accounts_count(place->accounts, &counts->written, 1);
    store_accounts_count(place->accounts, &counts->bytes_written, bytes);
}

void redis_prefixes_read(struct store_place *place, int64_t bytes)
{
    struct store_prefixes *counts = &place->accounts->report.prefixes;
    store_accounts_count(place->accounts, &counts->read, 1);
    store_accounts_count(place->accounts, &counts->bytes_read, bytes);
}
