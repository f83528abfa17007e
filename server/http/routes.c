/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/routes.h"

#include <stdio.h>
#include <string.h>

/* Whether path fits pattern (routes.h); what the asterisk stands for goes to parameter [size]. */
static bool matches(const char *pattern, const char *path, char *parameter, size_t size)
{
    const char *star = strchr(pattern, '*');
    size_t head = star ? (size_t)(star - pattern) : strlen(pattern);
    if (strncmp(pattern, path, head) != 0)
        return false;
    if (!star)
        return path[head] == 0;
    bool all = star[1] == '*';
    const char *tail = star + 1 + all;
    size_t rest = strlen(path + head), tail_length = strlen(tail);
    if (rest <= tail_length || strcmp(path + head + rest - tail_length, tail) != 0)
        return false;
    size_t length = rest - tail_length;
    if (length >= size)
        return false;
    memcpy(parameter, path + head, length);
    parameter[length] = 0;
    return all || !strchr(parameter, '/');
}

static const char *behind_version(const char *path)
{
    static const char VERSION[] = "/v1";
    size_t length = sizeof VERSION - 1;
    return strncmp(path, VERSION, length) == 0 && path[length] == '/' ? path + length : path;
}

static bool leads_to(const struct route *route, const char *path, char *parameter, size_t size)
{
    if (route->either)
        return matches(behind_version(route->path), behind_version(path), parameter, size);
    return matches(route->path, path, parameter, size);
}

static bool serves(const struct route *route, const char *method)
{
    return strcmp(route->method, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0);
}

const char *route_clean(const char *path, char clean[ROUTE_PATH_SIZE])
{
    size_t length = 0;
    if (strlen(path) >= ROUTE_PATH_SIZE)
        return path;
    for (const char *at = path; *at; at++)
        if (*at != '/' || length == 0 || clean[length - 1] != '/')
            clean[length++] = *at;
    while (length > 1 && clean[length - 1] == '/')
        length--;
    clean[length] = 0;
    return clean;
}

/* What names the server itself, in OPTIONS (RFC 9110, section 9.3.7). */
static bool is_server(const char *path)
{
    return strcmp(path, "/") == 0 || strcmp(path, "*") == 0;
}

/* Of one path, or of all. False: there is none. */
static bool list_methods(const struct route_table *table, const char *path, bool all, char *list,
                         size_t size)
{
    char parameter[256];
    size_t length = 0;
    list[0] = 0;
    for (size_t i = 0; i < table->count; i++) {
        const char *method = table->routes[i].method;
        const char *names = strcmp(method, "GET") == 0 ? "GET, HEAD" : method;
        if (!strstr(list, names) &&
            (all || leads_to(&table->routes[i], path, parameter, sizeof parameter)))
            length +=
                (size_t)snprintf(list + length, size - length, "%s%s", length ? ", " : "", names);
    }
    return length > 0;
}

bool route_methods(const struct route_table *table, const char *path, char *list, size_t size)
{
    return list_methods(table, path, is_server(path), list, size);
}

/* Whether clients know the path from elsewhere: by its name, or also by an asterisk. */
static bool is_lacking(const struct route_table *table, const char *path, bool by_name)
{
    char parameter[256];
    for (size_t i = 0; i < table->num_lacking; i++)
        if (by_name ? strcmp(table->lacking[i], path) == 0
                    : matches(table->lacking[i], path, parameter, sizeof parameter))
            return true;
    return false;
}

const struct route *route_find(const struct route_table *table, const char *method,
                               const char *path, char *parameter, size_t size,
                               struct api_error *err)
{
    char methods[sizeof err->allow];
    for (size_t i = 0; i < table->count; i++)
        if (serves(&table->routes[i], method) && leads_to(&table->routes[i], path, parameter, size))
            return &table->routes[i];
    bool named = is_lacking(table, path, true);
    if (!named && list_methods(table, path, false, methods, sizeof methods))
        api_error_method(err, method, methods);
    else if (named || is_lacking(table, path, false))
        api_error_set(err, API_NOT_IMPLEMENTED, NULL, "%s is not implemented, %s is", path,
                      table->instead);
    else
        api_error_unknown_path(err, path);
    return NULL;
}
