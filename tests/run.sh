#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `make test` and `make test-all` run: stages, `at_once` side by side, since one builds while another
# mostly waits. Each begins in the order of its list, once what it needs has passed.
# Usage: tests/run.sh [test|rest|all|stage...]      (default: test; stages one after the other)
#   test  what a newcomer waits for: lint, build, unit, golden, HTTP with the small clients
#   rest  the others: the page in a browser, what takes long over HTTP, all formats, sanitizers, the
#         emulated GPU, fuzz corpora, the big clients, manifests, proxies, clang-tidy
#   all   both
# After a stage that fails none begins. Each one's output is kept in build/test-logs/. The end of the
# output is every runner's own closing line, the times (of the clock, and of the processors: what other
# work beside it does not move), and the sum: "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")/.."

test_stages=(deps build lint unit golden http)
# What waits stands among what computes, and what others need comes early.
rest_stages=(deps page asan-build cuda-build http-long tsan-build asan-http bits cuda clients asan-unit
             tsan-http amx races-build proxies asan-golden cuda-races deploy fuzz-corpus tidy)
at_once=3
by_name=(agents arm) # only so: they take long
declare -A needs=([unit]=build [golden]=build [http]=build [asan-unit]=asan-build [asan-golden]=asan-build
                  [asan-http]="asan-build http-long" [tsan-http]="tsan-build asan-http" [cuda]=cuda-build
                  [cuda-races]=races-build
                  [tidy]=proxies) # both ask apt, which has a lock
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
    mkdir -p "build/$1" && (
        # Stages side by side may need the same build: two configurations at once take each other's files.
        flock 9
        cmake --preset "$1" --log-level=WARNING >/dev/null &&
            nice cmake --build --preset "$1" -j "$jobs" ${2:+--target "${@:2}"} 2>&1 |
            sed '/^\[ *[0-9]*%\]/d'
    ) 9>"build/$1/.lock"
}
# Limits of time are for hangs: ten times what it takes on an idle machine. Who runs into one is named.
limited() { # seconds, command
    local seconds=$1 status=0
    shift
    timeout --kill-after=30 "$seconds" "$@" || status=$?
    if [ $status -eq 124 ] || [ $status -eq 137 ]; then
        echo "TIMEOUT: $* after $seconds s"
    fi
    return $status
}
unit() { # preset
    local seconds=1200
    [ "$1" = dev ] || seconds=4800
    limited $seconds "${fixed_addresses[@]}" "build/$1/unit_tests" -j"$jobs" --verbose 2>&1 |
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
        bits "$1" q8 f16 16bit && bits "$1" q8 f16 8bit && bits "$1" q4 f16 8bit || return
    else
        echo "SKIP  bits of q8 and q4 with rounded activations: no avx512_vnni"
    fi
    if grep -qw avx512_bf16 /proc/cpuinfo; then
        bits "$1" bf16 f16 16bit
    else
        echo "SKIP  bits of bf16 with rounded activations: no avx512_bf16"
    fi
}
# Each file's tests in one process, since they share its servers; most of the time they wait, so there are
# more processes than cores.
# A test that has not ended after so long hangs: the slowest takes a tenth of it.
http() { # preset, seconds for each test, which by mark
    REGLA_BINARY=build/$1/regla "${fixed_addresses[@]}" $python -m pytest -q -p no:cacheprovider \
        -n $((2 * jobs)) --dist loadfile --durations=5 --timeout "$2" -rs ${3:+-m "$3"} tests/http \
        --ignore tests/http/proxies
}

stage_deps() { deploy/deps.sh test && tests/scripts/venv.sh; }
stage_lint() { $python tests/lint/lint.py; }
stage_build() { build dev; }
stage_unit() { unit dev; }
stage_golden() { golden dev tests/golden/*/ tests/golden/*/model.gguf; }
# All golden cases in all formats; the unit tests have run some of each.
stage_bits() {
    build dev regla && bits dev bf16 f16 && bits dev f16 bf16 && bits dev q8 f16 && bits dev q4 f16 &&
        rounded_bits dev
}
# Products by AMX's tiles, or by their emulation: all golden cases.
stage_amx() {
    local set=amx_emulated kind
    grep -qw avx512_vnni /proc/cpuinfo || {
        echo "SKIP  products by tiles: no avx512_vnni"
        return
    }
    build dev regla || return
    [[ $(build/dev/regla info --preset regla-6l --json) == *'"instruction_set": "amx"'* ]] && set="amx"
    for kind in "bf16 f32" "bf16 16bit" "f16 f32" "f16 16bit" "q8 f32" "q8 16bit" "q8 8bit" "q6 16bit" "q4 f32" "q4 8bit"; do
        build/dev/regla check --instruction-set $set --bits-only --weights "${kind% *}" \
            --activations "${kind#* }" tests/golden/*/ | grep -v ^PASS
        [ "${PIPESTATUS[0]}" -eq 0 ] || return
    done
}
stage_http() { http dev 300 "not long"; }
# What would make everyone wait.
stage_http-long() { build dev regla regla-plot && http dev 300 long; }
# Clients that bring hundreds of megabytes with them, in an environment of their own.
stage_clients() {
    tests/scripts/venv.sh tests/clients && build dev regla || return
    REGLA_BINARY=build/dev/regla tests/clients/.venv/bin/python -m pytest -q -p no:cacheprovider \
        --timeout 600 tests/http/clients
}
# Claude Code and Codex, in an environment of their own and a network that has loopback only.
stage_agents() {
    tests/scripts/venv.sh tests/agents && build dev regla || return
    REGLA_BINARY=build/dev/regla tests/agents/.venv/bin/python -m pytest -q -p no:cacheprovider \
        --timeout 600 tests/http/agents
}
# The page at / in a browser: it measures times, so nothing runs beside it.
stage_page() {
    deploy/deps.sh page && build dev regla || return
    REGLA_BINARY=build/dev/regla $python -m pytest -q -p no:cacheprovider --timeout 300 -rs -s tests/page
}
# nginx, HAProxy and Caddy in front.
stage_proxies() {
    deploy/deps.sh proxies && build dev regla || return
    REGLA_BINARY=build/dev/regla $python -m pytest -q -p no:cacheprovider --timeout 300 -rs tests/http/proxies
}
# Manifests and configurations in deploy/, by the schemas of those who read them.
stage_deploy() {
    tests/scripts/venv.sh tests/deploy &&
        tests/deploy/.venv/bin/python -m pytest -q -p no:cacheprovider tests/deploy
}
# The CUDA backend: on the emulated device, and compiled for real ones where there is a compiler.
stage_cuda-build() {
    build cuda-emulated regla kernels cuda_tests && tests/cuda/run.sh compile
}
stage_cuda() { tests/cuda/run.sh emulated; }
stage_races-build() { build cuda-races regla kernels cuda_test_races cuda_test_launch; }
stage_cuda-races() { tests/cuda/run.sh races; }
stage_fuzz-corpus() { tests/fuzz/run.sh corpus; }
stage_asan-build() { build asan; }
stage_asan-unit() { unit asan; }
# The units have run all of them in chunks and batches.
stage_asan-golden() { build/asan/regla check tests/golden/*/; }
stage_asan-http() { http asan 1200; }
stage_tsan-build() { build tsan regla; }
stage_tsan-http() { http tsan 2400; }
# The build for 64-bit Arm, under qemu.
stage_arm() { deploy/deps.sh arm && tests/arm/run.sh; }
stage_tidy() { deploy/deps.sh tidy && build dev && tests/lint/tidy.sh; }

# Prints "passed failed skipped" of one stage's log, from the closing line of its runner.
count() { # stage, log
    case $1 in
    *http | http-long | agents | clients | deploy | proxies | page)
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

# The seconds that processors gave to what `times` has on its second line, the shell's children.
processor_seconds() { # file
    [ ! -s "$1" ] || awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, part, "m"); sum += 60 * part[1] + part[2] } }
                         END { printf "%d", sum }' "$1"
}

closing_line() { # stage, log
    grep -aE '^=* ?[0-9]+ (passed|failed|skipped|error).* in |Synthesis: Tested|^[a-z-]+: [0-9]+ passed, ' "$2" |
        sed 's/\x1b\[[0-9;]*m//g' | tail -n 1
}

# ---- which ----

stages=()
case ${1:-test} in
test) stages=("${test_stages[@]}") ;;
rest) stages=("${rest_stages[@]}") ;;
all) stages=("${test_stages[@]}" "${rest_stages[@]:1}") ;;
*)
    known=" ${test_stages[*]} ${rest_stages[*]:1} ${by_name[*]} "
    for stage in "$@"; do
        if [[ $known != *" $stage "* ]]; then
            echo "run.sh: no stage $stage (known:$known)" >&2
            exit 2
        fi
    done
    [[ " $* " == *" deps "* ]] || [ -x $python ] || stages=(deps)
    stages+=("$@")
    at_once=1
    ;;
esac

# ---- one after and beside the other ----

interrupted() {
    local group
    for group in $(jobs -p); do
        kill -- "-$group" 2>/dev/null
    done
    exit 130
}
trap interrupted INT TERM

declare -A started=() status=() seconds=() stage_of=()
summary=()
total_passed=0 total_failed=0 total_skipped=0
broken=()

finish() { # stage
    local stage=$1 log=$logs/$1.log passed failed skipped
    seconds[$stage]=$((SECONDS - started[$stage]))
    read -r passed failed skipped < <(count "$stage" "$log")
    if [ "${status[$stage]}" -ne 0 ]; then
        broken+=("$stage")
        # A stage that broke before its runner could count is one failure.
        [ "$failed" -gt 0 ] || failed=1
    fi
    total_passed=$((total_passed + passed))
    total_failed=$((total_failed + failed))
    total_skipped=$((total_skipped + skipped))
    summary+=("$(printf '%-12s %5d s  %5s s of processors   %s' "$stage" "${seconds[$stage]}" \
        "$(processor_seconds "$logs/$stage.times")" "$(closing_line "$stage" "$log")")")
}

# Whether it needs nothing that has not passed. What is not asked for is taken to be there.
may_begin() { # stage
    local need
    for need in ${needs[$1]:-}; do
        [[ " ${stages[*]} " != *" $need "* ]] || [ "${status[$need]:-1}" -eq 0 ] || return 1
    done
    return 0
}
is_alone() { [ "$1" = deps ] || [ "$1" = page ]; } # stage

run_stage() { # stage
    local result=0
    "stage_$1" </dev/null 2>&1 || result=$?
    times >"$logs/$1.times"
    return $result
}

begin() { # stage; its output comes whole, when it has ended, but at once where it is alone
    started[$1]=$SECONDS
    set -m # a process group of its own, for `interrupted`
    if [ $at_once -eq 1 ] || is_alone "$1"; then
        echo "==> $1"
        { run_stage "$1" | tee "$logs/$1.log"; exit "${PIPESTATUS[0]}"; } &
    else
        echo "==> $1 begins"
        run_stage "$1" >"$logs/$1.log" &
    fi
    set +m
    stage_of[$!]=$1
}

wait_for_one() {
    local result=0 stage pid
    wait -n -p pid "${!stage_of[@]}" || result=$?
    stage=${stage_of[$pid]}
    unset "stage_of[$pid]"
    status[$stage]=$result
    if [ $at_once -gt 1 ] && ! is_alone "$stage"; then
        echo "==> $stage"
        cat "$logs/$stage.log"
    fi
    finish "$stage"
}

# The first of those that are left that may begin now; what must be alone waits, and all behind it with it.
next_stage() {
    local i
    for i in "${!left[@]}"; do
        if is_alone "${left[$i]}"; then
            [ ${#stage_of[@]} -eq 0 ] || return 1
        fi
        if may_begin "${left[$i]}"; then
            next=$i
            return
        fi
    done
    return 1
}

mkdir -p $logs
rm -f $logs/*.log $logs/*.times
left=("${stages[@]}")
while :; do
    while [ ${#broken[@]} -eq 0 ] && [ ${#stage_of[@]} -lt $at_once ] && next_stage; do
        stage=${left[$next]}
        unset "left[$next]"
        begin "$stage"
        ! is_alone "$stage" || break
    done
    [ ${#stage_of[@]} -gt 0 ] || break
    wait_for_one
done

echo
printf '%s\n' "${summary[@]}"
for stage in "${broken[@]}"; do
    # Criterion counts a test that leaks as passing, warns, and then exits with 1.
    grep -ahE '^TIMEOUT: |Failed: Timeout|^\[(FAIL|CRASH)|Warning! The test |^(FAILED|ERROR) |^FAIL ' "$logs/$stage.log" | sort -u | head -n 20
    echo "stage $stage FAILED (its output: $logs/$stage.log)"
done
[ ${#left[@]} -eq 0 ] || echo "did not run: ${left[*]}"
echo "total time: $SECONDS s"
echo "$total_passed passed, $total_failed failed, $total_skipped skipped"
[ ${#broken[@]} -eq 0 ]
