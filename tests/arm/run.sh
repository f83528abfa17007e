#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds for 64-bit Arm and runs it under qemu-user: golden cases on each instruction set of NEON, and unit tests.
# No processor of Arm is asked, so this shows results, but no speed.
# Usage: tests/arm/run.sh [all]
#   all  every golden case also in chunks and batches, and every unit test, however long it takes emulated
set -uo pipefail
cd "$(dirname "$0")/../.."

if [ "$(uname -m)" = aarch64 ] || ! [ -d tests/.arm ] || ! command -v qemu-aarch64 >/dev/null || ! command -v aarch64-linux-gnu-gcc >/dev/null; then
    echo "SKIP  arm: needs gcc-aarch64-linux-gnu, qemu-user and tests/.arm (deploy/deps.sh arm), on another machine than an Arm"
    exit 0
fi

# Processors that have what the set needs and no more.
declare -A processor=([neon]=cortex-a53 [neondot]=cortex-a76 [neonmm]=max,sve=off,pauth-impdef=on)
emulated() { # set, command
    qemu-aarch64 -cpu "${processor[$1]}" -L tests/.arm "${@:2}"
}

cmake --preset arm-test --log-level=WARNING >/dev/null &&
    nice cmake --build --preset arm-test -j "${JOBS:-$(nproc)}" --target regla unit_tests 2>&1 |
    sed '/^\[ *[0-9]*%\]/d' || exit 1

# Those that take a minute or more emulated, and those that ask for the host's speed or processes.
left_out=('attention/every_*' 'attention/a_softcap_*' 'engine_allocations/*' 'gemm/products_*' 'gemm/a_row_*'
          'golden/[!p]*' 'chat_parser/generated_*' 'chat_parser/long_*' 'formulas/tanh_*')
# qemu-user says yes to MADV_POPULATE_WRITE, and does nothing.
never=('state/memory_is_there_*' 'state/a_small_budget_is_*')
checked=(regla dense_llama gla) # in chunks and batches
if [ "${1:-}" = all ]; then
    left_out=()
    checked=("$(cd tests/golden && echo */)")
fi

check() { # set, options and cases of `regla check`
    emulated "$1" build/arm-test/regla check --threads 1 "${@:2}" | grep -v ^PASS
    return "${PIPESTATUS[0]}"
}
formats_of() { # set
    echo "f32 f32"
    echo "f16 f32"
    echo "q8 f32"
    echo "q6 f32"
    echo "q4 f32"
    [ "$1" = neon ] || printf '%s\n' "q8 16bit" "q8 8bit" "q4 16bit" "q4 8bit"
    [ "$1" != neonmm ] || echo "bf16 16bit"
}
on_set() { # set
    local weights activations failed=0
    # shellcheck disable=SC2086
    set -- "$1" $(printf 'tests/golden/%s ' ${checked[*]})
    emulated "$1" build/arm-test/regla info tests/golden/regla | grep -w "$1" >/dev/null ||
        { echo "FAIL  ${processor[$1]} does not run $1"; failed=1; }
    check "$1" tests/golden/*/ || failed=1
    check "$1" --reproducibility "${@:2}" || failed=1
    while read -r weights activations; do
        check "$1" --bits-only --weights "$weights" --activations "$activations" "${@:2}" || failed=1
    done < <(formats_of "$1")
    return $failed
}

failed=0
for set in neon neondot neonmm; do
    on_set $set &
done
for set in neon neondot neonmm; do
    wait -n || failed=1
done
without=()
for pattern in "${never[@]}" "${left_out[@]}"; do
    without+=(-x "$pattern")
done
emulated neonmm build/arm-test/unit_tests -j "${JOBS:-$(nproc)}" "${without[@]}" | grep -v '^\[PASS\]'
[ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
exit $failed
