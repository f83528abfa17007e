#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that wants a GPU, in one go, for a machine that is lent for minutes and has nothing but
# CUDA and PyTorch. Where the machine has what deploy/deps.sh installs, `make test-cuda` is simpler.
#
# 1. Here, without a GPU, from a tree where everything is committed:
#
#        loadtest/cuda_session.sh pack
#
#    builds for sm_90 alone (build/cuda-session) and puts the programs, their libraries and a text
#    into $CUDA_SESSION (.cuda-session, which git ignores), with the wheels of
#    flash-linear-attention, and cuda_chain (build/cuda-chain). It ends with status 1 and says why
#    where anything is missing, or where what git tracks and this are more than $MOST_MIB (60). Git
#    tracks 38 MiB, this is 12; the tool carries 64 at most. WHEELS=no does without the wheels (1 MiB),
#    with which transformers runs linear layers of flash-linear-attention; of the programs
#    cuda_test_model is the next that a session can do without. The text is data/wikitext-2/test.txt of the folder shared/ in
#    the checkout or beside it, or what TEXT names.
#
# 2. There, in two calls of the tool `run`. 15 minutes of the device are lent in all, and the wait for
#    a machine counts: it was 98, 47 and 40 s where one was free, and minutes for a third call. So the
#    first call takes as much as a call may, and the second what is left. The tool carries the checkout
#    that the session was started in: pack there. The arguments are carry=[".cuda-session"],
#    timeout_s=600 and this as the command, whole:
#
#    loadtest/cuda_session.sh run smoke kernels check latency timestamps batches models prompts serve transformers rows
#
#    then timeout_s=SECONDS_AT_MOST + 30 with
#
#    SECONDS_AT_MOST=190 loadtest/cuda_session.sh run switches time softmax sanitize study ncu
#
#    where SECONDS_AT_MOST is what is left (`status`, budget_left_s) less 40 on a warm machine, less 140
#    on a new one. Copy the files from files_at after each: the next call empties $OUT. Call give_back
#    unless the second call follows within 30 s. A call that names no kind may get an H100 or an H200,
#    and the table's first line says which; for figures of one kind put the same kind= into both. The
#    table says what did not fit. On an H200 smoke and kernels took 5 s, check 169 (its last six parts
#    81), latency 27, timestamps 7, batches 17, models 53 (a model 5 to 17), prompts 16, serve 22 with
#    replies of 256 tokens alone. transformers needs some 20 before its first point. One of ours there
#    takes some 4 s: on that card 1,024 tokens of regla-160m take 0.4 s for one text and 0.8 for 64. How
#    long one of theirs takes is not known; each may have half of what is left. So of 120 s the first
#    has some 35, of 240 some 90.
#
# What comes back, in $OUT (./cuda-session where it is not set), at most 8 files:
#    table.txt   a line for each part, written anew before and after each: name, result, seconds,
#                figures. It is there when a later part dies, or all is killed
#    all.txt     the output of every part; now.log: of the part that ran when all was killed
#    switches.csv overhead.csv transformers.csv study.csv study.json
#
# How it goes on when something fails:
#  - Every call begins with cuda_test_launch. Its status says whether there is a device: 77 ends all.
#  - Where it or a golden case of `smoke` hangs or fails, it runs once more without overlap, then by
#    compute-sanitizer's memcheck, and all else is left out: give the machine back and mend it. To go
#    on instead, put REGLA_CUDA_WITHOUT=overlap before the command where that passed, or name the
#    stages without `smoke` where a golden case failed by little.
#  - What a part that ran into its limit left running is killed. Then cuda_test_launch runs for at most 15 s, and where that fails
#    once more without overlap. If that passes, all that follows runs without overlap; else all ends.
#  - Each stage has a limit too. Parts that hang one after the other take no more than that, and the
#    next stage runs.
#  - Any other part that fails is a line of the table, and the next one runs.
# Status: 77 without a device, 1 when anything failed.
#
# A rehearsal, without a GPU: the emulated device, small models, long limits, the same way through:
#
#        export CUDA_SESSION=/tmp/rehearsal PATH=$PWD/tests/.venv/bin:$PATH
#        PRESET=cuda-emulated loadtest/cuda_session.sh pack
#        REHEARSAL=1 SECONDS_AT_MOST=7200 OUT=/tmp/rehearsal/out loadtest/cuda_session.sh run
#
# What fails, hangs, is missing or killed: tests/scripts/cuda_session_test.sh, with false programs.
# Other variables: MODELS, presets for the stage of that name; PROGRAMS, a folder of programs instead
# of the packed ones; LIMITS_PERCENT, which makes all limits longer or shorter; CUDA_TOOLS, where
# NVIDIA's tools are that are not on the PATH.
set -uo pipefail
# compute-sanitizer and ncu; nvidia-smi, where it is not on the PATH
PATH=$PATH:${CUDA_TOOLS-/usr/local/cuda/bin:/usr/local/nvidia/bin}
self=$(readlink -f "$0")
cd "$(dirname "$self")/.." || exit 1

# Seconds that a stage takes at most. What has to hold comes first, then what is measured, the dearest
# last.
declare -A stage_limits=([smoke]=200 [kernels]=90 [check]=240 [latency]=90 [batches]=80 [models]=120 [serve]=90
    [rows]=60 [switches]=150 [time]=150 [prompts]=90 [softmax]=60 [transformers]=240 [timestamps]=60
    [sanitize]=180 [study]=300 [ncu]=60)
all_stages="smoke kernels check latency timestamps batches models prompts serve transformers"
all_stages+=" rows switches time softmax sanitize study ncu" # which hung once, and took the device with it
at_most=${SECONDS_AT_MOST:-570}
folder=${CUDA_SESSION:-.cuda-session}
out=${OUT:-cuda-session}
rehearsal=${REHEARSAL:+yes}
percent=${LIMITS_PERCENT:-100}
MOST_FILES=8
failed=0
by_line=(stdbuf -oL) # what a program of C has said is there when it is stopped

# ---- sizes: on a device, in a rehearsal ----

size() { # on a device, in a rehearsal
    if [ -n "$rehearsal" ]; then echo "$2"; else echo "$1"; fi
}
cases=(tests/golden/*/)
small=(--preset regla-6l) profiled=(--preset regla-6l) large=(--preset regla-160m) softmax=(--preset softmax-160m)
if [ -n "$rehearsal" ]; then
    cases=(tests/golden/{hybrid_regla,gla_fla,sliding_t5}/)
    small=(--model tests/golden/hybrid_regla) profiled=(tests/golden/hybrid_regla) large=(--model tests/golden/regla_tied_glu_wide)
    softmax=(--model tests/golden/softmax_rope)
    percent=${LIMITS_PERCENT:-3000}
    export REGLA_EMULATION_MEMORY=$((16 << 30))
fi

# ---- pack ----

missing() {
    echo "cuda_session: pack: $*" >&2
    exit 1
}

# The text that is packed where TEXT names none. shared/ is beside the repository, and a worktree of it
# may be anywhere.
find_text() {
    local file=data/wikitext-2/test.txt at
    for at in shared ../shared "$(git rev-parse --path-format=absolute --git-common-dir)/../../shared"; do
        [ ! -r "$at/$file" ] || break
    done
    echo "$at/$file"
}

# What is needed, before a build of minutes.
check_needs() { # preset
    [ "$1" != cuda ] || command -v nvcc >/dev/null || missing "no nvcc on the PATH"
    command -v wrk >/dev/null || missing "no wrk (deploy/deps.sh test): stage serve sends with it"
    [ -r "$text" ] || missing "no text $text: name another in TEXT"
    git diff --quiet HEAD -- || echo "cuda_session: pack: not all is committed" >&2
}

# Programs by their names: their libraries are for them alone, as PyTorch has its own. The driver's may
# be found by the path that is set there and by no other.
wrap() { # folder, program
    cp "$2" "$1/bin/" || missing "no $2 after the build"
    strip "$1/bin/${2##*/}"
    cat >"$1/${2##*/}" <<'EOF'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$here/bin/${0##*/}" "$@"
EOF
    chmod +x "$1/${2##*/}"
}

# All but those of the C and C++ compilers, which have to be the machine's.
add_libraries() { # folder
    local library
    ldd "$1"/bin/* | awk '/not found/ { print "not-found:" $1 } $3 ~ /^\// { print $3 }' | sort -u |
        grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*|libstdc\+\+|libgcc_s)\.so' |
        while read -r library; do cp -Lu "$library" "$1/lib/" || exit 1; done
}

build() { # preset, folder, its targets, what else cmake is told
    local definitions=("${@:4}")
    [ "$1" = cuda-emulated ] || definitions+=(-DCMAKE_CUDA_ARCHITECTURES=90-real)
    # shellcheck disable=SC2086 # targets are words
    { cmake --preset "$1" -B "$2" "${definitions[@]}" --log-level=WARNING >/dev/null &&
        cmake --build "$2" -j "${JOBS:-$(nproc)}" --target $3; } ||
        missing "the build of $2 failed"
}

pack() {
    local most=${MOST_MIB:-60} preset=${PRESET:-cuda} folder_of folder_of_chain program source bytes
    text=${TEXT:-$(find_text)}
    check_needs "$preset"
    folder_of=build/$preset folder_of_chain=build/$preset
    [ "$preset" != cuda ] || folder_of=build/cuda-session folder_of_chain=build/cuda-chain
    build "$preset" "$folder_of" "regla kernels cuda_tests"
    # with timestamps in its kernels, for which the emulated device needs no build of its own
    if [ "$preset" = cuda ] && grep -q '"cuda-chain"' CMakePresets.json; then
        build cuda-chain "$folder_of_chain" cuda_chain -DREGLA_KERNEL_LEVEL=1
    fi
    echo "cuda_session: built after $SECONDS s"
    programs=$(mktemp -d)
    trap 'rm -rf "$programs"' EXIT
    mkdir -p "$folder" "$programs/lib" "$programs/bin"
    for program in "$folder_of/regla" "$folder_of/kernels" "$(command -v wrk)"; do
        wrap "$programs" "$program"
    done
    for source in tests/cuda/test_*.c*; do
        source=${source##*/}
        wrap "$programs" "$folder_of/cuda_${source%%.*}"
    done
    if [ -x "$folder_of_chain/cuda_chain" ]; then
        wrap "$programs" "$folder_of_chain/cuda_chain"
    else
        echo "cuda_session: pack: no $folder_of_chain/cuda_chain: no stage timestamps"
    fi
    add_libraries "$programs" || missing "a library of the programs"
    head -n 400 "$text" >"$programs/text.txt"
    git describe --always --dirty >"$programs/commit"
    archive "$programs" "$folder/programs.tar.xz" || missing "no archive"
    rm -rf "$folder/wheels"
    [ "${WHEELS:-}" = no ] || python3 -m pip download -q --no-deps --only-binary=:all: --dest \
        "$folder/wheels" flash-linear-attention==0.6.0 fla-core==0.6.0 einops==0.8.2 ||
        missing "no wheels of flash-linear-attention from PyPI: WHEELS=no does without"
    bytes=$( (git ls-files -z; find "$folder" -type f -print0) | du -cb --files0-from=- | tail -n 1)
    bytes=${bytes%%[!0-9]*}
    echo "cuda_session: packed after $SECONDS s: $((bytes >> 20)) MiB to carry of $most:" \
        "$(du -sh "$folder"/* | tr '\n\t' '; ')"
    [ "$bytes" -le $((most << 20)) ] || missing "more than $most MiB to carry"
}

# What Python can unpack there. The programs have nearly all in common, up to 128 MiB apart: what this
# can see. Preset 6's search takes six times as long for 3 % less.
archive() { # folder, archive
    python3 - "$1" "$2" <<'EOF'
import lzma, sys, tarfile
how = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 27, "mode": lzma.MODE_NORMAL,
        "mf": lzma.MF_HC4, "nice_len": 128}]
with lzma.open(sys.argv[2], "w", filters=how) as out, tarfile.open(fileobj=out, mode="w") as file:
    file.add(sys.argv[1], ".")
EOF
}

# The folder with the programs: what was carried, unpacked, or what has been built here.
find_programs() {
    programs=${PROGRAMS:-build/cuda}
    if [ -z "${PROGRAMS:-}" ] && [ -r "$folder/programs.tar.xz" ]; then
        programs=$(mktemp -d)
        trap 'rm -rf "$programs"' EXIT
        python3 -m tarfile -e "$folder/programs.tar.xz" "$programs"
    fi
    regla=$programs/regla
    if [ ! -x "$regla" ] || [ ! -x "$programs/cuda_test_launch" ]; then
        echo "cuda_session: no $folder/programs.tar.xz and no regla and cuda_test_launch in" \
            "$programs: first pack, or make cuda" >&2
        exit 1
    fi
}

# ---- parts of stages, and the table ----

table=() # its lines
ended='' # why nothing more is to run
status=0 # of the last part
stage_end=$at_most # when the stage's time is over

# As a whole, so that a reader sees the old one or the new one.
write_table() { # a line that is not yet one of it
    printf '%s\n' "${table[@]}" "$@" >"$out/table.new" && mv "$out/table.new" "$out/table.txt"
}

left_out() { # name, why
    table+=("$(printf '%-26s left out: %s' "$1" "$2")")
    echo "== ${table[-1]}"
    write_table
}

left() { # of the stage's time, and of all
    local end=$((stage_end < at_most ? stage_end : at_most))
    echo $((end - SECONDS))
}

# The figures of an output for the table: what calls itself one, the tests of `regla bench` (share of
# the limit last), sums of cuda_chain, streams of overhead.py, the speed of a copy, means of kernels by ncu, or how many tests passed.
figures() { # log
    awk '
        function add(text) { found = found (found == "" ? "" : "; ") text }
        /^figure: / { add(substr($0, 9)) }
        /^sum: [0-9]+ kernels/ { add(substr($0, 6)) }
        $NF ~ /^[0-9.]+%$/ {
            for (i = 5; i <= 7; i++)
                if ($i ~ /^(pp|tg)[0-9]/ && $(i + 1) ~ /^[0-9.]+$/ && $(i + 2) ~ /%$/)
                    add($i " b" $(i - 1) ($3 == "f32" ? "" : " " $3) (i == 7 ? " " $4 : "") " " \
                        $(i + 1) "/s " $NF)
        }
        NF == 9 && $2 $3 $4 $5 $6 $7 $8 $9 ~ /^[0-9.-]+$/ { add($2 " streams " $4 "/s, " $6 " % of the engine") }
        /the smallest kernel takes/ { add($0) }
        /, Context [0-9]+, Stream [0-9]+/ && match($0, /[a-z0-9_]+_kernel/) {
            kernel = substr($0, RSTART, RLENGTH)
        }
        $1 == "Duration" { calls[kernel]++; time[kernel] += $3; unit[kernel] = $2 }
        $1 " " $2 " " $3 == "DRAM Throughput %" { share[kernel] += $4 }
        /[0-9]+ passed, [0-9]+ failed$/ { passed = $0 }
        END {
            for (kernel in calls)
                add(sprintf("%s %d times %.2f %s, DRAM %.1f %%", kernel, calls[kernel],
                    time[kernel] / calls[kernel], unit[kernel], share[kernel] / calls[kernel]))
            print found != "" ? found : passed
        }' "$1"
}

# Kills what a part that was stopped has left running. A profiler's program is in no group of its, but
# has its environment, and keeps the device's memory.
end_left() { # CUDA_SESSION_PART
    local i found
    for ((i = 0; i < 20; i++)); do
        mapfile -t found < <(grep -lzxF "CUDA_SESSION_PART=$1" /proc/[0-9]*/environ 2>/dev/null |
            tr -dc '0-9\n')
        [ ${#found[@]} -gt 0 ] || return
        kill -KILL "${found[@]}" 2>/dev/null
        sleep 0.25
    done
    echo "cuda_session: could not kill ${found[*]}"
}

# Runs a part for so many seconds at most; keeps its output, and how it ended in `status` and the table.
run_part() { # name, seconds, lines to show (more where it did not pass), command...
    local name=$1 ms=$((10 * $2 * percent)) lines=$3 begin=$SECONDS limit result
    shift 3
    if [ "$(left)" -lt 5 ]; then
        status=0
        left_out "$name" "no time$([ $SECONDS -ge $((at_most - 5)) ] || echo ' left to its stage')"
        return
    fi
    [ $ms -lt $((1000 * $(left))) ] || ms=$((1000 * $(left)))
    limit=$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))
    write_table "$(printf '%-26s under way since %d s' "$name" $begin)"
    CUDA_SESSION_PART=$$.$name timeout -k 5 "$limit" "$@" >"$out/now.log" 2>&1
    status=$?
    [ $status -ne 124 ] && [ $status -ne 137 ] || end_left "$$.$name" >>"$out/now.log"
    case $status in
    0) result=passed ;;
    77) result="FAILED, saw no device" ;;
    124 | 137) result="stopped after ${limit%??} s" ;;
    *) result="FAILED, status $status" ;;
    esac
    if [ $status -ne 0 ]; then
        failed=1
        [ "$lines" -gt 15 ] || lines=15
    fi
    table+=("$(printf '%-26s %-22s %4d s  %s' "$name" "$result" $((SECONDS - begin)) \
        "$(figures "$out/now.log")")")
    echo "== ${table[-1]}"
    tail -n "$lines" "$out/now.log"
    { echo "==== $name: $result" && cat "$out/now.log"; } >>"$out/all.txt"
    rm -f "$out/now.log"
    write_table
}

# With one more thing off than before: for `env`.
without() { # switch
    echo "REGLA_CUDA_WITHOUT=${REGLA_CUDA_WITHOUT:+$REGLA_CUDA_WITHOUT,}$1"
}

# After a part that ran into its limit, for the others not to do so too.
look_again() { # name of the part
    local stage_end=$at_most # the stage may have had its time
    run_part after_"$1" 10 1 "$programs/cuda_test_launch"
    [ $status -ne 0 ] || return
    [[ ,${REGLA_CUDA_WITHOUT:-}, == *,overlap,* ]] ||
        run_part after_"$1"_apart 10 1 env "$(without overlap)" "$programs/cuda_test_launch"
    if [ $status -ne 0 ]; then
        ended="the device did not answer after $1"
        return
    fi
    export "$(without overlap)"
    table+=("# from here on without overlap")
}

part() { # as run_part
    if [ -n "$ended" ]; then
        left_out "$1" "$ended"
        return
    fi
    run_part "$@"
    local result=$status
    if [ $result -eq 124 ] || [ $result -eq 137 ]; then
        [ $((at_most - SECONDS)) -lt 5 ] || look_again "$1"
    fi
    status=$result
}

# A part that, where it fails, runs once more without what emulation knows least of.
check_part() { # as run_part
    part "$@"
    [ $status -eq 0 ] || part "$1_apart" "$2" "$3" env "$(without overlap)" "${@:4}"
}

has_pytorch() { # for what
    python3 -c 'import importlib.util as i
exit(not all(map(i.find_spec, ["torch", "transformers"])))' || { left_out "$1" "no PyTorch" && false; }
}

has_tool() { # tool, for what
    command -v "$1" >/dev/null || { left_out "$2" "no $1" && false; }
}

bench() { # name, seconds, lines, arguments...
    part "$1" "$2" "$3" "$regla" bench --device cuda --weights bf16 "${@:4}"
}

switches() { # name, seconds, arguments of cuda_switches.py...
    part "$1" "$2" 40 env PYTHONUNBUFFERED=1 python3 loadtest/cuda_switches.py --regla "$regla" \
        --each $((30 * percent / 100 + 1)) --csv "$out/switches.csv" "${@:3}"
}

check() { # `regla check` of folders and flags, as a command
    echo "${by_line[@]}" "$regla" check --device cuda --state-memory 64M "$@"
}

# Where cuBLASLt is: the library is CUDA's or PyTorch's. Nothing where it is not, nor where the device
# is emulated, and with it the library.
find_cublaslt() {
    [ -z "$rehearsal" ] || return
    python3 - <<'EOF'
import glob, sys
places = ["/usr/local/cuda/lib64", *(f"{at}/nvidia/*/lib" for at in sys.path if at)]
found = [name for place in places for name in sorted(glob.glob(f"{place}/libcublasLt.so.1[0-9]"))]
print(found[0] if found else "")
EOF
}

# ---- stages: first what says whether the backend works, and how fast it is ----

# A part that has to pass for anything else to make sense.
smoke() { # name, seconds, command...
    run_part "$1" "$2" 1 "${by_line[@]}" "${@:3}"
    [ $status -ne 0 ] || return 0
    [ $status -ne 77 ] || return
    run_part "$1_apart" "$2" 1 env "$(without overlap)" "${by_line[@]}" "${@:3}"
    if has_tool compute-sanitizer "$1_memcheck"; then
        run_part "$1_memcheck" 60 40 compute-sanitizer --tool memcheck --error-exitcode 9 \
            --target-processes all "${@:3}"
    fi
    ended="$1 failed"
    return 1
}

stage_smoke() { # after cuda_test_launch
    local case
    for case in hybrid_regla gla_fla; do
        [ -n "$ended" ] || smoke smoke_$case 10 "$regla" check --device cuda --state-memory 64M \
            --weights f32 --kv f32 tests/golden/$case/
    done
}

stage_kernels() {
    check_part kernels_check 60 1 "${by_line[@]}" "$programs/kernels" check
}

# shellcheck disable=SC2046 # words of check
stage_check() {
    local program formats weights kv activations text library seconds
    library=$(find_cublaslt)
    check_part golden_f32 100 0 \
        $(check --weights f32 --kv f32 --reproducibility "${cases[@]}")
    check_part golden 60 0 $(check "${cases[@]}")
    for program in "$programs"/cuda_test_*; do
        text=() seconds=40
        [ "${program##*_}" != model ] || [ ! -r "$programs/text.txt" ] || [ -n "$rehearsal" ] ||
            text=("$programs/text.txt" 8192) seconds=60
        # They pass without it, and test nothing.
        [ "${program##*_}" != cublaslt ] || [ -n "$library" ] || [ -n "$rehearsal" ] ||
            { left_out "${program##*/}" "no libcublasLt"; continue; }
        [ "${program##*_}" = launch ] || check_part "${program##*/}" $seconds 1 \
            env ${library:+REGLA_CUDA_CUBLASLT=$library} "${by_line[@]}" "$program" "${text[@]}"
    done
    for formats in "bf16 f16 f32" "f16 bf16 f32" "q8 f16 f32" "q4 f16 f32" "q6 f16 16bit" "bf16 f16 16bit"; do
        read -r weights kv activations <<<"$formats"
        check_part "bits_${weights}_$activations" 30 0 $(check --bits-only --weights "$weights" \
            --kv "$kv" --activations "$activations" "${cases[@]}")
    done
}

stage_latency() {
    bench bench_6l 30 20 "${small[@]}" --pp "$(size 2048 8)" --tg "$(size 64,1024,8192 2,4)"
    # what it is worth that a kernel begins while the one before it ends
    switches overlap 60 --bench "${small[*]} --weights bf16 --pp 0 --tg $(size 64,1024 2,4)" \
        --without overlap
}

# Prompts of one text: those of many take as many times as long, and say the same.
stage_batches() {
    bench bench_12l 40 40 "${large[@]}" --pp 0 --tg "$(size 64 2)" \
        --batch "$(size 1,64,256 1,4,12)" --operations
    bench bench_12l_prompts 20 20 "${large[@]}" --pp "$(size 512,2048 8)" --tg 0 \
        --activations f32,16bit --operations
    # and that tensor cores multiply with one number of bf16 for an input, not two
    bench bench_12l_16bit 40 40 "${large[@]}" --pp 0 --tg "$(size 64 2)" \
        --batch "$(size 64,256 4,12)" --activations 16bit
    bench bench_12l_blocks 30 20 "${large[@]}" --weights q8,q4 --pp "$(size 512 8)" --tg "$(size 64 2)"
}

# The shapes of models that people run, with random weights.
stage_models() {
    local preset presets
    read -ra presets <<<"${MODELS:-smollm2-135m mamba2-130m qwen3.5-0.8b falcon-h1-90m \
granite-4.0-h-350m lfm2-350m}"
    [ -z "$rehearsal" ] || presets=(regla-6l)
    for preset in "${presets[@]}"; do
        bench "$preset" 15 20 --preset "$preset" --pp "$(size 512,2048 8)" --tg "$(size 64 2)" \
            --repeat "$(size 3 1)" --operations
        bench "${preset}_texts" 15 20 --preset "$preset" --pp 0 --tg "$(size 64 2)" \
            --batch "$(size 16,64 4)" --repeat "$(size 3 1)" --operations
    done
}

overhead() { # name, seconds, arguments...
    part "$1" "$2" 12 env PATH="$programs:$PATH" python3 loadtest/overhead.py --binary "$regla" \
        --device cuda "${@:3}" --no-plots --out "$out/serve"
}

# Streams over HTTP beside `regla bench`, and a step by cause.
stage_serve() {
    local model=(--preset regla-160m)
    # of few tokens
    [ -z "$rehearsal" ] || model=("${small[@]}" --vocabulary 256)
    python3 -c 'import httpx' 2>/dev/null || { left_out serve "no httpx" && return; }
    # Texts of long replies are most of the time all there; with short ones their beginning weighs as much.
    overhead serve 70 "${model[@]}" --streams "$(size 1,256 1,4)" --length "$(size 1024 6)" \
        --repeat "$(size 2 1)"
    overhead serve_short 30 "${model[@]}" --streams "$(size 256 4)" --length "$(size 256 4)" --repeat 1
    mv "$out/serve/overhead.csv" "$out/" 2>/dev/null
    rm -rf "$out/serve"
}

# Up to how many rows products take the kernel for few rows.
stage_rows() {
    switches rows 60 --bench "${large[*]} --weights bf16 --pp 0 --tg $(size 64 2) --batch \
$(size 16,32,64 12,16)" --environment REGLA_CUDA_STREAMED_ROWS="$(size 8,16,32,64 8,16)"
}

# What each switch brings, in one table.
stage_switches() {
    switches switches 150 --without "$(size all overlap,row,bulk,draw)" \
        --bench "${small[*]} --weights bf16 --pp 0 --tg $(size 256 2) --repeat $(size 5 1)" \
        --bench "${large[*]} --weights bf16 --pp 0 --tg $(size 64 2) --batch $(size 64,256 4,12) \
--repeat $(size 5 1)"
}

# ---- then what says more of it ----

# Equal calls follow each other there, so that a kernel loads its weights while the one before it runs:
# without overlap as well.
stage_time() {
    part kernels_time 60 100 "${by_line[@]}" "$programs/kernels" time
    part kernels_time_apart 60 100 env "$(without overlap)" "${by_line[@]}" "$programs/kernels" time
    # the same products by cuBLAS
    has_pytorch products_cublas &&
        part products_cublas 60 20 python3 loadtest/cuda_transformers.py --products
}

# Long prompts with the products of ours and of cuBLASLt. Each by a process of its own: an engine takes
# nine tenths of the memory that is free for its states, and leaves too little for others beside it.
stage_prompts() {
    local library weights products
    if ! "$regla" bench --help | grep -- --products >/dev/null; then
        left_out prompts "regla bench has no --products"
        return
    fi
    library=$(find_cublaslt)
    for weights in bf16 f16; do
        for products in own cublaslt; do
            part prompts_${weights}_$products 30 10 env ${library:+REGLA_CUDA_CUBLASLT=$library} \
                "$regla" bench --device cuda "${large[@]}" --weights $weights --products $products \
                --tg 0 --pp "$(size 512,2048,8192 8,16)" --repeat "$(size 3 1)"
        done
    done
}

stage_softmax() {
    bench bench_softmax 60 30 "${softmax[@]}" --pp "$(size 2048 8)" --tg "$(size 64 2)" \
        --depth "$(size 0,2048 0,8)" --batch "$(size 1,64 1,4)" --operations
}

stage_transformers() {
    local site='' seconds=210
    has_pytorch transformers || return
    if [ -d "$folder/wheels" ]; then
        site=$programs/site # where they were unpacked, which goes when this ends
        part wheels 60 0 python3 -m pip install -q --no-index --no-deps --no-compile \
            --no-cache-dir --target "$site" "$folder"/wheels/*.whl
    fi
    [ "$(left)" -gt $((seconds + 30)) ] || seconds=$(($(left) - 30))
    [ $seconds -ge 30 ] || { left_out transformers "no time" && return; }
    part transformers 240 40 env PYTHONUNBUFFERED=1 ${site:+PYTHONPATH=$site} python3 \
        loadtest/cuda_transformers.py --regla "$regla" --seconds "$seconds" \
        --out "$out/transformers.csv"
}

# When the kernels of a decode step begin, have waited, and end: a build of its own (engine/README.md).
stage_timestamps() {
    local preset presets=(regla-6l smollm2-135m mamba2-130m)
    if [ ! -x "$programs/cuda_chain" ]; then
        left_out timestamps "no cuda_chain was packed"
        return
    fi
    [ -z "$rehearsal" ] || presets=()
    for preset in "${presets[@]}"; do
        part "timestamps_$preset" 30 60 "$programs/cuda_chain" --preset "$preset" --steps 21
    done
    part timestamps_texts 30 90 "$programs/cuda_chain" "${large[@]}" --batch "$(size 64 4)" \
        --steps "$(size 21 2)"
}

sanitize() { # tool, what it runs, seconds, command...
    part "$1_$2" "$3" 1 compute-sanitizer --tool "$1" --error-exitcode 9 --target-processes all \
        "${@:4}"
}

stage_sanitize() {
    local check=("$regla" check --device cuda --state-memory 16M --weights f32 --kv f32)
    local few=(tests/golden/{hybrid_regla,sliding_t5}/) more=(tests/golden/{gla_fla,deltanet}/)
    has_tool compute-sanitizer sanitize || return
    sanitize memcheck few 60 "${check[@]}" "${few[@]}"
    sanitize racecheck few 60 "${check[@]}" "${few[@]}"
    sanitize memcheck kernels 60 "$programs/kernels" check
    sanitize racecheck kernels 60 "$programs/kernels" check
    sanitize memcheck more 45 "${check[@]}" "${more[@]}"
    sanitize racecheck more 45 "${check[@]}" "${more[@]}"
    sanitize initcheck few 45 "${check[@]}" "${few[@]}"
    sanitize synccheck few 45 "${check[@]}" "${few[@]}"
}

stage_study() {
    local lengths=()
    [ -z "$rehearsal" ] || lengths=(--lengths "1,2" --repeat 1 --turns 1)
    part study 300 40 "$regla" study --device cuda "${lengths[@]}" \
        --systems "$(size regla,hybrid_regla,softmax regla)" --out "$out/study"
    mv "$out"/study/study.{csv,json} "$out/" 2>/dev/null
    rm -rf "$out/study"
}

# ncu saves and restores all memory of the process for every kernel. So the process is a small one,
# and the stage the last: what it leaves of the device, nobody needs.
stage_ncu() {
    has_tool ncu ncu || return
    part ncu 60 100 ncu --clock-control none --target-processes all -k regex:'stream|recurrence' \
        --section SpeedOfLight --section MemoryWorkloadAnalysis --section SchedulerStats \
        --section Occupancy -c 40 "$regla" generate "${profiled[@]}" --device cuda --weights bf16 \
        --state-memory 64M --prompt 1 --max-tokens 4 --temperature 0 --ignore-eos
}

# ---- run ----

# Whose GPU, which commit. What decides is cuda_test_launch: nvidia-smi need not be there.
describe() {
    local gpu
    gpu=$(timeout -k 5 10 nvidia-smi --query-gpu=name,driver_version,memory.total \
        --format=csv,noheader 2>/dev/null) || gpu="no nvidia-smi"
    gpu+="; $(cat "$programs/commit" 2>/dev/null); $(date -u '+%F %T')"
    echo "# $gpu${rehearsal:+; a rehearsal}${REGLA_CUDA_WITHOUT:+; without $REGLA_CUDA_WITHOUT}; $*"
}

run() {
    local stages=("$@") stage files
    [ ${#stages[@]} -gt 0 ] || read -ra stages <<<"$all_stages"
    for stage in "${stages[@]}"; do
        if ! declare -F "stage_$stage" >/dev/null; then
            echo "cuda_session: no stage $stage (known: $all_stages)" >&2
            exit 2
        fi
    done
    find_programs
    mkdir -p "$out" || exit 1
    table+=("$(describe "${stages[@]}")")
    echo "${table[0]}" | tee -a "$out/all.txt"
    # as long as somebody has it open, the driver keeps what every process would have to wait for
    { exec 9</dev/nvidia0; } 2>/dev/null
    smoke smoke_launch 15 "$programs/cuda_test_launch"
    if [ $status -eq 77 ] && [ -z "$ended" ]; then
        echo "cuda_session: skipped: no device"
        exit 77
    fi
    for stage in "${stages[@]}"; do
        if [ -z "$ended" ]; then
            stage_end=$((SECONDS + stage_limits[$stage] * percent / 100))
            "stage_$stage"
        else
            left_out "$stage" "$ended"
        fi
    done
    write_table
    files=$(find "$out" -type f | wc -l)
    [ "$files" -le $MOST_FILES ] || echo "cuda_session: $files files in $out, of which 8 come back"
    echo "== table after $SECONDS s"
    tee -a "$out/all.txt" <"$out/table.txt"
    exit $failed
}

case ${1:-} in
pack) pack ;;
run) shift && run "$@" ;;
*) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$self" && exit 2 ;;
esac
