/* SPDX-License-Identifier: Apache-2.0 */
/* That --port 0 finds a port that is free on all addresses: in a network of the test's own, where
 * the system gives four ports and half of them are taken on one of two addresses. */
#include "server/http/listen.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST_PORT = 40000, PORTS = 4 };

/* False: the system does not let us. */
static bool own_network(void)
{
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    if (unshare(CLONE_NEWNET) != 0)
        return false;
    FILE *range = fopen("/proc/sys/net/ipv4/ip_local_port_range", "w");
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    bool done = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &loopback) == 0 && range != NULL &&
                fprintf(range, "%d %d", FIRST_PORT, FIRST_PORT + PORTS - 1) > 0;
    if (range != NULL)
        done = fclose(range) == 0 && done;
    if (fd >= 0)
        close(fd);
    return done;
}

static int take(const char *address, int port)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    inet_pton(AF_INET, address, &name.sin_addr);
    cr_assert(bind(fd, (struct sockaddr *)&name, sizeof name) == 0 && listen(fd, 1) == 0);
    return fd;
}

Test(listen, any_port_is_one_that_all_addresses_have)
{
    char *hosts[] = {"127.0.0.1", "127.0.0.2"};
    const struct names names = {.items = hosts, .count = 2};
    if (!own_network())
        cr_skip_test("no network of its own");
    int taken[2] = {take("127.0.0.2", FIRST_PORT), take("127.0.0.2", FIRST_PORT + 1)};
    for (int i = 0; i < 20; i++) {
        struct listeners listeners = {0};
        struct error err = ERROR_INIT;
        cr_assert(listeners_open(&listeners, &names, 0, 0, &err) == 0, "%s", err.message);
        cr_assert_eq(listeners.count, 2);
        cr_expect_str_eq(strchr(listeners.items[0].address, ':'),
                         strchr(listeners.items[1].address, ':'));
        listeners_close(&listeners);
    }
    struct listeners listeners = {0};
    struct error err = ERROR_INIT;
    cr_expect_eq(listeners_open(&listeners, &names, FIRST_PORT, 0, &err), -1);
    cr_expect_str_eq(err.message, "cannot listen on 127.0.0.2 port 40000: Address already in use");
    listeners_close(&listeners);
    close(taken[0]);
    close(taken[1]);
}
