/* SPDX-License-Identifier: Apache-2.0 */
#include "server/service.h"

int service_check_ready(struct service *service, struct api_error *err)
{
    switch (service_phase(service)) {
    case SERVICE_LOADING: {
        const char *store = atomic_load(&service->store_waits);
        return store ? api_error_set(err, API_LOADING, NULL,
                                     "the store is %s: the start waits for it", store)
                     : api_error_set(err, API_LOADING, NULL, "the model is still being loaded");
    }
    case SERVICE_DRAINING:
        return api_error_set(err, API_DRAINING, NULL, "the server is shutting down");
    case SERVICE_FAILED:
        return api_error_set(err, API_ENGINE_FAILED, NULL, "the engine has failed");
    default:
        return 0;
    }
}

int service_check_loaded(struct service *service, struct api_error *err)
{
    return service_phase(service) == SERVICE_LOADING ? service_check_ready(service, err) : 0;
}

const struct engine_info *service_engine_info(struct service *service)
{
    return service_phase(service) == SERVICE_LOADING ? NULL : engine_info(service->engine);
}

int service_check_tokenizer(const struct service *service, struct api_error *err)
{
    if (!service->limits.token_ids_only)
        return 0;
    return api_error_set(err, API_NOT_IMPLEMENTED, NULL,
                         "this model has no tokenizer: the server takes and gives token ids only");
}

const char *service_owner(struct service *service, int key)
{
    pthread_mutex_lock(&service->owners_lock);
    const char *owner = service->owners.items[key];
    pthread_mutex_unlock(&service->owners_lock);
    return owner;
}
