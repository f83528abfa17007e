# SPDX-License-Identifier: Apache-2.0
# Cross-compiles for 64-bit Arm with Debian's gcc, against the packages that `deploy/deps.sh arm` unpacks.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
get_filename_component(ARM_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../tests/.arm ABSOLUTE)
set(CMAKE_SYSROOT ${ARM_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${ARM_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${ARM_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${ARM_SYSROOT}/usr/share/pkgconfig)
# Under emulation by default: `cmake --build` may run what it has built.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -cpu max -L ${ARM_SYSROOT})
