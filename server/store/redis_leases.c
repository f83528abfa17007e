/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_leases.h"

#include "server/store/redis_keys.h"
#include "server/store/redis_replies.h"
#include "server/store/redis_rows.h"
#include "server/store/redis_scripts.h"

static void send_renewal(struct store_place *place, const struct store_held *held)
{
    const bool session = held->kind == STORE_SESSION;
    const struct store_reply request = {.name = held->request, .name_length = held->request_length};
    struct redis_command command;
    char key[REDIS_KEY_SIZE];
    if (session)
        redis_key_session(key, place->model, held->owner, held->id, "");
    else
        redis_replies_key(place, &request, key);
    redis_scripts_begin(&command, session ? &redis_script_renew : &redis_script_reply_renew, 1);
    redis_command_text(&command, key);
    redis_command_text(&command, held->holder);
    redis_command_number(&command, (int64_t)(place->lease_s * 1e3));
    redis_link_send(&place->renewals, &command);
}

int64_t redis_leases_renew(struct store_place *place, struct store_held *first, struct error *err)
{
    int64_t failures = 0;
    if (redis_link_open(&place->renewals, false, err) != 0)
        return 0; /* the place says itself that it is away */
    for (const struct store_held *held = first; held != NULL; held = held->next)
        send_renewal(place, held);
    for (struct store_held *held = first; held != NULL; held = held->next) {
        struct error failed = ERROR_INIT;
        redisReply *reply = redis_link_receive(&place->renewals, &failed);
        held->lost = reply != NULL && redis_rows_is(reply, 0, "lost");
        if (reply == NULL) {
            error_set(err, failed.code, "%s", failed.message);
            failures++;
        }
        freeReplyObject(reply);
    }
    return failures;
}
