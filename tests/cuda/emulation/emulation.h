/* What the files of the emulated device share. */
#ifndef TESTS_CUDA_EMULATION_EMULATION_H
#define TESTS_CUDA_EMULATION_EMULATION_H

#include "tests/cuda/emulation/cuda_runtime.h"

namespace emulation
{

struct settings {
    bool backward;
    unsigned seed;
    size_t memory, shared; /* bytes of the device, and of a block */
    long fail_at;          /* launch; 0: none */
};

const settings &get_settings();

/* Runs a kernel to its end; `kernel` is called for every thread of every block. overlaps: a device
 * might begin it before the kernel before has ended, so that its threads have to grid_wait. */
void run(dim3 grid, dim3 block, size_t shared_bytes, bool overlaps,
         const std::function<void()> &kernel);

} // namespace emulation

#endif
