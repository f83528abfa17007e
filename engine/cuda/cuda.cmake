# SPDX-License-Identifier: Apache-2.0
# The CUDA backend: compiled by nvcc, or by the C++ compiler for a device that tests/cuda/emulation/
# emulates. -fmad=false: what is fused is written as fmaf, the same on every device.
file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS engine/cuda/*.cu)
# What it is compiled for is told to its own files, its tests and the engine's one file that chooses a
# device: all others are the same as without it, and come from ccache after another build.
set(CUDA_DEFINITIONS REGLA_CUDA)
if(REGLA_CUDA STREQUAL "EMULATED")
  list(APPEND CUDA_DEFINITIONS REGLA_CUDA_EMULATION)
endif()
set_property(SOURCE engine/device.c APPEND PROPERTY COMPILE_DEFINITIONS ${CUDA_DEFINITIONS})
if(NOT REGLA_CUDA_TIMESTAMPS)
  list(REMOVE_ITEM CUDA_SOURCES ${CMAKE_SOURCE_DIR}/engine/cuda/timestamps.cu)
endif()
if(REGLA_CUDA STREQUAL "EMULATED")
  enable_language(CXX)
  set(CMAKE_CXX_STANDARD 17)
  set(EMULATED_OPTIONS -xc++ -Wno-unknown-pragmas -Wno-sign-compare)
  # Without -mfma each fmaf of a kernel is a call of libm. It rounds the same either way; what this machine
  # builds, it also runs. Not where accesses are watched: clang would not report those of 32 bytes.
  file(STRINGS /proc/cpuinfo FUSED_PROCESSOR LIMIT_COUNT 1 REGEX "^flags.* fma .*avx2")
  if(FUSED_PROCESSOR AND NOT REGLA_CUDA_RACES)
    list(APPEND EMULATED_OPTIONS -mfma -mavx2)
  endif()
  if(REGLA_CUDA_RACES)
    if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
      message(FATAL_ERROR "REGLA_CUDA_RACES: expected clang++ (preset cuda-races), got "
                          "${CMAKE_CXX_COMPILER}: it does not report every access")
    endif()
    # instrumented for, but not linked with, ThreadSanitizer: tests/cuda/emulation/races.h
    list(APPEND CUDA_DEFINITIONS REGLA_CUDA_RACES)
    list(APPEND EMULATED_OPTIONS -fsanitize=thread -Wno-pass-failed)
  endif()
  file(GLOB EMULATION_SOURCES CONFIGURE_DEPENDS tests/cuda/emulation/*.cc)
  set_source_files_properties(${CUDA_SOURCES} PROPERTIES LANGUAGE CXX
    COMPILE_OPTIONS "${EMULATED_OPTIONS}")
  add_library(regla_cuda STATIC ${CUDA_SOURCES} ${EMULATION_SOURCES})
  target_include_directories(regla_cuda PUBLIC ${CMAKE_SOURCE_DIR}/tests/cuda/emulation)
  target_compile_options(regla_cuda PRIVATE -Wall -O2 -ffp-contract=off -fno-math-errno)
  if(REGLA_WERROR)
    target_compile_options(regla_cuda PRIVATE -Werror)
  endif()
  set_target_properties(regla_cuda PROPERTIES LINKER_LANGUAGE CXX)
  if(REGLA_CUDA_RACES)
    target_link_options(regla_cuda INTERFACE -Wl,--wrap=memcpy)
  endif()
else()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual) # and PTX for what comes later
  endif()
  # The language brings the runtime, linked statically. Its package would stop here: Debian 12's CMake
  # looks for a library that CUDA 13 no longer has.
  enable_language(CXX CUDA)
  add_library(regla_cuda STATIC ${CUDA_SOURCES})
  set_target_properties(regla_engine PROPERTIES CUDA_ARCHITECTURES OFF) # it has no kernels itself
  target_compile_options(regla_cuda PRIVATE -fmad=false -ftz=true -prec-div=true -prec-sqrt=true)
endif()
target_compile_features(regla_cuda PUBLIC cxx_std_17)
if(REGLA_CUDA_TIMESTAMPS)
  list(APPEND CUDA_DEFINITIONS REGLA_CUDA_TIMESTAMPS)
  add_executable(cuda_chain loadtest/cuda_chain.c)
  target_link_libraries(cuda_chain PRIVATE regla_engine)
endif()
target_include_directories(regla_cuda PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_definitions(regla_cuda PUBLIC ${CUDA_DEFINITIONS} PRIVATE _GNU_SOURCE)
if(REGLA_SANITIZE)
  target_compile_options(regla_cuda PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${REGLA_SANITIZE}
    -fno-sanitize-recover=all -fno-omit-frame-pointer>)
endif()
# Each needs the other: the device's errors are the engine's.
target_link_libraries(regla_engine PUBLIC $<LINK_ONLY:regla_cuda>)
target_link_libraries(regla_cuda PRIVATE $<LINK_ONLY:regla_engine> ${CMAKE_DL_LIBS})

# tests/cuda/test_x.c and .cu: programs, whose status is 77 where there is no device. They run in the
# repository's root, which on a lent machine (loadtest/cuda_session.sh) is another than here.
if(REGLA_TESTS)
  add_custom_target(cuda_tests)
  if(REGLA_CUDA_TIMESTAMPS)
    add_dependencies(cuda_tests cuda_chain)
  endif()
  file(GLOB CUDA_TESTS CONFIGURE_DEPENDS tests/cuda/test_*.c tests/cuda/test_*.cu)
  if(REGLA_CUDA_RACES)
    list(APPEND CUDA_TESTS ${CMAKE_SOURCE_DIR}/tests/cuda/emulation/test_races.cu)
  endif()
  foreach(source ${CUDA_TESTS})
    get_filename_component(name ${source} NAME_WE)
    add_executable(cuda_${name} ${source})
    add_dependencies(cuda_tests cuda_${name})
    target_compile_definitions(cuda_${name} PRIVATE REGLA_SOURCE_DIR=".")
    if(source MATCHES "c$")
      target_link_libraries(cuda_${name} PRIVATE regla_engine)
      target_compile_definitions(cuda_${name} PRIVATE ${CUDA_DEFINITIONS})
      continue()
    endif()
    # as the backend's own files, without the flags of C
    target_link_libraries(cuda_${name} PRIVATE regla_cuda $<LINK_ONLY:regla_engine>)
    target_include_directories(cuda_${name} PRIVATE ${CMAKE_SOURCE_DIR})
    if(REGLA_CUDA STREQUAL "EMULATED")
      set_source_files_properties(${source} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
        "${EMULATED_OPTIONS}")
    endif()
  endforeach()
endif()

# loadtest/kernels: checks every kernel against the CPU, then times it. Without the tests there is only
# what ships: an image is built without loadtest/ (.dockerignore).
if(REGLA_TESTS)
  file(GLOB KERNELS_SOURCES CONFIGURE_DEPENDS loadtest/kernels/*.c)
  add_executable(kernels ${KERNELS_SOURCES})
  target_link_libraries(kernels PRIVATE regla_engine)
  target_compile_definitions(kernels PRIVATE ${CUDA_DEFINITIONS})
endif()
