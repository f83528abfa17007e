/* SPDX-License-Identifier: Apache-2.0 */
/* Bulk copies of the emulated device. What is copied arrives when somebody waits for it, not
 * earlier: until then a load's place in shared memory is NaN. A store reads shared memory when its
 * thread waits for that, and writes when its thread waits for that. races.cc takes a memcpy for the
 * thread that runs: so there is none here. */
#include "tests/cuda/emulation/emulation.h"
#include "tests/cuda/emulation/races.h"

#include <stdio.h>
#include <stdlib.h>

#include <deque>
#include <map>
#include <vector>

namespace
{
struct load {
    char *to;
    const void *from;
    size_t bytes;
    uint32_t order; /* races.h */
};
struct arrival {
    unsigned rounds; /* that have ended */
    bool expects;    /* somebody said how much comes in this one */
    size_t left;     /* bytes expected, but not requested */
    std::vector<load> loads;
    std::vector<uint32_t> arrived; /* orders of the last round's loads */
    std::vector<int> waiting;      /* threads */
};
struct store {
    void *to;
    const void *from;
    size_t bytes;
    uint32_t reads, writes; /* orders */
    std::vector<char> read;
};
struct group {
    std::vector<store> stores;
    bool has_read;
};
struct stores_of_thread {
    std::vector<store> open;
    std::deque<group> groups; /* that have not been written, the oldest first */
};

std::map<const void *, arrival> arrivals;
std::map<int, stores_of_thread> stores;

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "emulation: %s\n", what);
    abort();
}

arrival &arrival_at(const void *at)
{
    auto found = arrivals.find(at);
    if (found == arrivals.end())
        fail("a bulk barrier that nobody has opened");
    return found->second;
}

void check(const void *shared, const void *global, size_t bytes)
{
    if (bytes == 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(shared) % 16 != 0 ||
        reinterpret_cast<uintptr_t>(global) % 16 != 0)
        fail("a bulk copy whose size or address is no multiple of 16");
    if (!emulation::is_shared(shared, bytes) || emulation::is_shared(global, 1))
        fail("a bulk copy that is not between shared and global memory");
}

/* Ends the round if all that it expects has been requested. */
bool end_round(arrival *arrival)
{
    if (!arrival->expects || arrival->left != 0)
        return false;
    arrival->arrived.clear();
    for (const load &load : arrival->loads) {
        memmove(load.to, load.from, load.bytes);
        races::end_copy(load.order);
        arrival->arrived.push_back(load.order);
    }
    arrival->loads.clear();
    arrival->expects = false;
    arrival->rounds++;
    return true;
}

void wake_all(arrival *arrival)
{
    if (arrival->waiting.empty() || !end_round(arrival))
        return;
    for (int thread : arrival->waiting)
        emulation::wake(thread);
    arrival->waiting.clear();
}

void read_group(group *group)
{
    for (store &store : group->stores) {
        const char *from = static_cast<const char *>(store.from);
        store.read.assign(from, from + store.bytes);
        races::end_copy(store.reads);
        races::see_copy(store.reads);
    }
    group->has_read = true;
}
} // namespace

namespace emulation
{

void bulk_open(void *at)
{
    if (reinterpret_cast<uintptr_t>(at) % 8 != 0)
        fail("a bulk barrier that is not aligned to 8");
    arrivals[at] = {};
}

void bulk_fence()
{
    races::fence();
}

void bulk_expect(void *at, unsigned bytes)
{
    arrival *arrival = &arrival_at(at);
    if (arrival->expects)
        fail("a bulk barrier that is told twice in a round what to expect");
    arrival->expects = true;
    arrival->left = bytes;
    wake_all(arrival);
}

void bulk_load(void *shared, const void *global, unsigned bytes, void *at)
{
    arrival *arrival = &arrival_at(at);
    const void *where = __builtin_return_address(0);
    check(shared, global, bytes);
    if (!arrival->expects || arrival->left < bytes)
        fail("a bulk copy of more than its barrier expects");
    races::access(global, bytes, false, where);
    uint32_t order = races::begin_copy();
    races::access_by_copy(shared, bytes, true, order, where);
    memset(shared, 0xff, bytes);
    arrival->left -= bytes;
    arrival->loads.push_back({static_cast<char *>(shared), global, bytes, order});
    wake_all(arrival);
}

void bulk_wait(void *at, unsigned parity)
{
    arrival *arrival = &arrival_at(at);
    if (arrival->rounds % 2 == parity && !end_round(arrival)) {
        arrival->waiting.push_back(thread_number());
        wait_to_wake("a bulk barrier");
    }
    for (uint32_t order : arrival->arrived)
        races::see_copy(order);
}

void bulk_store(void *global, const void *shared, unsigned bytes)
{
    const void *where = __builtin_return_address(0);
    check(shared, global, bytes);
    struct store store = {global, shared, bytes, races::begin_copy(), races::begin_copy(), {}};
    races::access_by_copy(shared, bytes, false, store.reads, where);
    races::access_by_copy(global, bytes, true, store.writes, where);
    stores[thread_number()].open.push_back(store);
}

void bulk_commit()
{
    stores_of_thread *mine = &stores[thread_number()];
    mine->groups.push_back({std::move(mine->open), false});
    mine->open.clear();
}

void bulk_wait_read(int groups_in_flight)
{
    std::deque<group> *groups = &stores[thread_number()].groups;
    for (size_t i = 0; i + (size_t)groups_in_flight < groups->size(); i++)
        if (!(*groups)[i].has_read)
            read_group(&(*groups)[i]);
}

void bulk_wait_written(int groups_in_flight)
{
    bulk_wait_read(groups_in_flight);
    std::deque<group> *groups = &stores[thread_number()].groups;
    while (groups->size() > (size_t)groups_in_flight) {
        for (const store &store : groups->front().stores) {
            memmove(store.to, store.read.data(), store.bytes);
            races::end_copy(store.writes);
            races::see_copy(store.writes);
        }
        groups->pop_front();
    }
}

void bulk_end_block()
{
    for (const auto &at : arrivals)
        if (at.second.expects || !at.second.loads.empty())
            fail("a block ends with bulk copies that nobody has waited for");
    for (const auto &of : stores)
        if (!of.second.open.empty() || !of.second.groups.empty())
            fail("a block ends with bulk stores that are not written");
    arrivals.clear();
    stores.clear();
}

} // namespace emulation
