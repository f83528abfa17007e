#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over the program's C files, with the checks of .clang-tidy, as build/dev compiles them
# (it must be built). The kernels of instruction sets are not among them: they are minutes each.
# Usage: tests/lint/tidy.sh [file...]      (default: all)
set -uo pipefail
cd "$(dirname "$0")/../.."

files=("$@")
if [ ${#files[@]} -eq 0 ]; then
    mapfile -t files < <(git ls-files '*.c' | grep -E '^(api|bench|cli|engine|lib|server)/' |
        grep -v '^engine/cpu/simd_')
fi
found=build/tidy
rm -rf $found
mkdir -p $found
# What gcc needs and clang does not know is no finding: headers' attributes, and flags, which tests have.
printf '%s\n' "${files[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} sh -c '
    log='$found'/$(echo {} | tr / _).log
    clang-tidy -p build/dev --quiet --warnings-as-errors="*" \
        --extra-arg=-Wno-unknown-warning-option {} >"$log" 2>/dev/null && rm "$log"'
failed=$(find $found -name '*.log' | wc -l)
cat $found/*.log 2>/dev/null
echo "tidy: $((${#files[@]} - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]
