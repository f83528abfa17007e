#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the fuzz targets (clang, libFuzzer, ASan + UBSan) and runs each.
# Usage: tests/fuzz/run.sh corpus         replays tests/fuzz/corpus/<target>/, seconds
#        tests/fuzz/run.sh SECONDS [target...]   fuzzes each that long; new inputs go to build/fuzz/
set -euo pipefail
cd "$(dirname "$0")/../.."

mode=${1:-600}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do
        targets+=("$(basename "$source" .c)")
    done
fi
cmake --preset fuzz --log-level=WARNING >/dev/null
cmake --build --preset fuzz -j "${JOBS:-$(nproc)}" --target "${targets[@]}" 2>&1 |
    sed '/^\[ *[0-9]*%\]/d'

export ASAN_OPTIONS=detect_leaks=1
passed=0 failed=0
for target in "${targets[@]}"; do
    corpus=tests/fuzz/corpus/${target#fuzz_}
    options=(-timeout=10 -rss_limit_mb=2048 -print_final_stats=0 -verbosity=0)
    case $mode in
    corpus)
        run=(build/fuzz/"$target" "${options[@]}" -runs=0 "$corpus") ;;
    *)
        mkdir -p build/fuzz/new/"$target" build/fuzz/findings
        run=(build/fuzz/"$target" "${options[@]}" -max_total_time="$mode"
             -artifact_prefix=build/fuzz/findings/"$target"- build/fuzz/new/"$target" "$corpus") ;;
    esac
    if "${run[@]}"; then
        echo "$target: $(find "$corpus" -type f | wc -l) inputs, no finding"
        passed=$((passed + 1))
    else
        echo "$target: FAILED"
        failed=$((failed + 1))
    fi
done
echo "fuzz: $passed passed, $failed failed"
[ $failed -eq 0 ]
