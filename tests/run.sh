#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every test, in order of how soon it can fail; what `make test` runs.
# Usage: tests/run.sh [stage...]      (default: all of them; names as in `stages` below)
# A stage that fails stops the run. Each one's output is kept in build/test-logs/. The end of the
# output is every runner's own closing line, the times, and the sum: "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")/.."

stages=(deps lint build unit golden http cuda cuda-races fuzz-corpus asan-build asan-unit
        asan-golden asan-http tsan-build tsan-http)
logs=build/test-logs
jobs=${JOBS:-$(nproc)}
python=tests/.venv/bin/python

# ThreadSanitizer of older compilers cannot map its shadow where the kernel randomises addresses
# widely; sanitised programs run without.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
    fixed_addresses=(setarch "$(uname -m)" -R)
fi
# Criterion does not look at a test's exit status: only by a signal does it notice a leak.
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1:strict_string_checks=1
ASAN_OPTIONS+=:detect_stack_use_after_return=1
export LSAN_OPTIONS=suppressions=$PWD/tests/leaks.txt:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1
# Nothing of ours runs on while a process exits, so nothing is missed without a second's wait there.
export TSAN_OPTIONS=second_deadlock_stack=1:history_size=4:atexit_sleep_ms=0
export PYTHONDONTWRITEBYTECODE=1
unset MAKEFLAGS MAKELEVEL # those of `make test` are not for the builds below

build() { # preset, targets: what later stages run, without them everything
    cmake --preset "$1" --log-level=WARNING >/dev/null &&
        cmake --build --preset "$1" -j "$jobs" ${2:+--target "${@:2}"} 2>&1 |
        sed '/^\[ *[0-9]*%\]/d'
}
unit() { # preset
    "${fixed_addresses[@]}" "build/$1/unit_tests" -j"$jobs" --verbose 2>&1 |
        grep -avE '^\[(RUN |PASS|====)\]( .*::|.*Running )'
    return "${PIPESTATUS[0]}"
}
golden() { # preset, folders
    "build/$1/regla" check --reproducibility "${@:2}"
}
bits() { # preset, format of the weights, of KV, activations
    "build/$1/regla" check --bits-only --weights "$2" --kv "$3" --activations "${4:-f32}" tests/golden/*/ |
        grep -v ^PASS
    return "${PIPESTATUS[0]}"
}
# Where the processor rounds them; elsewhere --activations is refused (tests/unit/test_instruction_set.c).
rounded_bits() { # preset
    if grep -qw avx512_vnni /proc/cpuinfo; then
        bits "$1" q8 f16 16bit && bits "$1" q8 f16 8bit || return
    else
        echo "SKIP  bits of q8 with rounded activations: no avx512_vnni"
    fi
    if grep -qw avx512_bf16 /proc/cpuinfo; then
        bits "$1" bf16 f16 16bit
    else
        echo "SKIP  bits of bf16 with rounded activations: no avx512_bf16"
    fi
}
# Each file's tests in one process, since they share its servers; most of the time they wait.
http() { # preset
    REGLA_BINARY=build/$1/regla "${fixed_addresses[@]}" $python -m pytest -q -p no:cacheprovider \
        -n "$jobs" --dist loadfile --durations=5 tests/http
}

stage_deps() { deploy/deps.sh test && tests/scripts/venv.sh; }
stage_lint() { $python tests/lint/lint.py; }
stage_build() { build dev; }
stage_unit() { unit dev; }
stage_golden() { golden dev tests/golden/*/ && bits dev bf16 f16 && bits dev f16 bf16 && bits dev q8 f16 && rounded_bits dev; }
stage_http() { http dev; }
# The CUDA backend: on the emulated device, and compiled for real ones where there is a compiler.
stage_cuda() {
    build cuda-emulated regla kernels cuda_tests &&
        tests/cuda/run.sh emulated && tests/cuda/run.sh compile
}
stage_cuda-races() {
    build cuda-races regla kernels cuda_test_races cuda_test_launch && tests/cuda/run.sh races
}
stage_fuzz-corpus() { tests/fuzz/run.sh corpus; }
stage_asan-build() { build asan; }
stage_asan-unit() { unit asan; }
# The units have run all of them in chunks and batches.
stage_asan-golden() {
    build/asan/regla check tests/golden/*/ &&
        golden asan tests/golden/{hybrid_regla,deltanet,sliding_t5}/
}
stage_asan-http() { http asan; }
stage_tsan-build() { build tsan regla; }
stage_tsan-http() { http tsan; }

# Prints "passed failed skipped" of one stage's log, from the closing line of its runner.
count() { # stage, log
    case $1 in
    *http)
        awk '/^=* ?[0-9].*(passed|failed|skipped|error)/ { line = $0 }
             END { while (match(line, /[0-9]+ (passed|failed|skipped|error)/)) {
                       split(substr(line, RSTART, RLENGTH), part, " ")
                       sum[part[2]] += part[1]; line = substr(line, RSTART + RLENGTH) }
                   print sum["passed"] + 0, sum["failed"] + sum["error"], sum["skipped"] + 0 }' "$2" ;;
    *unit)
        awk 'match($0, /Tested: [0-9]+ \| Passing: [0-9]+ \| Failing: [0-9]+ \| Crashing: [0-9]+/) {
                 gsub(/[^0-9]+/, " "); split($0, n, " ") }
             /^\[SKIP\]/ { skipped++ }
             END { print n[2] + 0, n[1] - n[2], skipped + 0 }' "$2" ;;
    *)
        awk '/^[a-z-]+: [0-9]+ passed, [0-9]+ failed$/ { passed += $2; failed += $4 }
             END { print passed + 0, failed + 0, 0 }' "$2" ;;
    esac
}

closing_line() { # stage, log
    grep -aE '^=* ?[0-9]+ (passed|failed|skipped|error).* in |Synthesis: Tested|^[a-z-]+: [0-9]+ passed, ' "$2" |
        sed 's/\x1b\[[0-9;]*m//g' | tail -n 1
}

known=" ${stages[*]} "
chosen=("${stages[@]}")
if [ $# -gt 0 ]; then
    chosen=("$@")
    if [[ " $* " != *" deps "* ]] && [ ! -x $python ]; then
        chosen=(deps "$@")
    fi
fi
mkdir -p $logs
rm -f $logs/*.log
summary=()
total_passed=0 total_failed=0 total_skipped=0
broken=
for stage in "${chosen[@]}"; do
    if [[ $known != *" $stage "* ]]; then
        echo "run.sh: no stage $stage (known:$known)" >&2
        exit 2
    fi
    log=$logs/$stage.log
    start=$SECONDS
    echo "==> $stage"
    "stage_$stage" </dev/null 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    read -r passed failed skipped < <(count "$stage" "$log")
    total_passed=$((total_passed + passed))
    total_failed=$((total_failed + failed))
    total_skipped=$((total_skipped + skipped))
    summary+=("$(printf '%-12s %5d s   %s' "$stage" $((SECONDS - start)) "$(closing_line "$stage" "$log")")")
    if [ "$status" -ne 0 ]; then
        broken=$stage
        # A stage that broke before its runner could count is one failure.
        [ "$failed" -gt 0 ] || total_failed=$((total_failed + 1))
        break
    fi
done

echo
printf '%s\n' "${summary[@]}"
if [ -n "$broken" ]; then
    echo "make test: stage $broken FAILED (its output: $logs/$broken.log); the later stages did not run"
fi
echo "total time: $SECONDS s"
echo "$total_passed passed, $total_failed failed, $total_skipped skipped"
[ -z "$broken" ]
