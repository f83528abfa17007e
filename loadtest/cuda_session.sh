#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that wants a GPU, in one go, for a machine that is lent for minutes and has nothing but
# CUDA and PyTorch. Where the machine has what deploy/deps.sh installs, `make test-cuda` is simpler.
#
#   loadtest/cuda_session.sh pack
#       here, without a GPU: builds and puts the programs and their libraries into one file in
#       $CUDA_SESSION (.cuda-session), to be carried along and kept out of git; with them $TEXT,
#       of which the shipped model's log-probabilities are compared (WikiText-2's), and, where PyPI
#       is at hand, the wheels of flash-linear-attention. Fails where what git tracks and this are
#       more than $MOST_MIB (64) together
#   loadtest/cuda_session.sh run [STAGE...]
#       there: check kernels bench serve transformers sanitize study, or those named. Stops by itself
#       before SECONDS_AT_MOST (570) are over; what did not fit is said to be left out. All output
#       goes to $OUT/all.txt ($OUT: ./cuda-session), that of what runs to now.log until it ends; the
#       short table comes last.
#
# Where a machine is lent for 15 minutes in all, and a start takes 90 s:
#   SECONDS_AT_MOST=330 ... run check kernels bench serve    it goes back while what failed is mended
#   SECONDS_AT_MOST=220 ... run transformers
#   SECONDS_AT_MOST=... ... run sanitize study               right after it: what is left less 60
# The first may come again in place of the others; 30 minutes are enough for all of all stages.
# Status: 77 without a device, 1 when anything failed.
set -uo pipefail
PATH=$PATH:/usr/local/cuda/bin # compute-sanitizer
self=$(readlink -f "$0")
cd "$(dirname "$self")/.." || exit 1

all_stages="check kernels bench serve transformers sanitize study"
at_most=${SECONDS_AT_MOST:-570}
folder=${CUDA_SESSION:-.cuda-session}
out=${OUT:-cuda-session}
summary=()
failed=0

pack() {
    local preset=cuda programs program library bytes
    cmake --preset $preset --log-level=WARNING >/dev/null &&
        cmake --build --preset $preset -j "${JOBS:-$(nproc)}" || return 1
    programs=$(mktemp -d)
    mkdir -p "$folder" "$programs/lib" "$programs/bin"
    for program in build/$preset/{regla,kernels,cuda_test_*} "$(command -v wrk)"; do
        [ -x "$program" ] || continue
        cp "$program" "$programs/bin/"
        # Its libraries are for it alone: PyTorch has its own. The driver's may be found by the path
        # that is set there and by no other.
        cat >"$programs/${program##*/}" <<'EOF'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$here/bin/${0##*/}" "$@"
EOF
        chmod +x "$programs/${program##*/}"
    done
    # All but those of the C and C++ compilers, which have to be the machine's.
    ldd "$programs"/bin/* | awk '$3 ~ /^\// { print $3 }' | sort -u |
        grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*|libstdc\+\+|libgcc_s)\.so' |
        while read -r library; do cp -Lu "$library" "$programs/lib/"; done
    # a text for the log-probabilities of the shipped model
    head -n 400 "${TEXT:-../shared/data/wikitext-2/test.txt}" >"$programs/text.txt" ||
        rm -f "$programs/text.txt"
    # The programs have nearly all in common, 64 MiB apart at most: what this can see.
    python3 - "$programs" "$folder/programs.tar.xz" <<'EOF' || return 1
import sys, tarfile
with tarfile.open(sys.argv[2], "w:xz", preset=9) as file:
    file.add(sys.argv[1], ".")
EOF
    rm -rf "$programs" "$folder/wheels"
    python3 -m pip download -q --no-deps --only-binary=:all: --dest "$folder/wheels" \
        flash-linear-attention==0.6.0 fla-core==0.6.0 einops==0.8.2 ||
        echo "cuda_session: no wheels of flash-linear-attention: no column for its GLA" >&2
    bytes=$( (git ls-files -z; find "$folder" -type f -print0) | du -cb --files0-from=- | tail -n 1)
    echo "$((${bytes%%[!0-9]*} >> 20)) MiB to carry of ${MOST_MIB:-64}:" "$(du -sh "$folder"/*)"
    [ "${bytes%%[!0-9]*}" -le $((${MOST_MIB:-64} << 20)) ]
}

# The folder with the programs: what was carried, unpacked, or what has been built here.
find_programs() {
    programs=build/cuda
    [ -r "$folder/programs.tar.xz" ] || return
    programs=$(mktemp -d)
    trap 'rm -rf "$programs"' EXIT
    python3 -m tarfile -e "$folder/programs.tar.xz" "$programs"
}

left() {
    echo $((at_most - SECONDS))
}

# A part of a stage: runs it with what time is left, keeps its output, notes how it ended, and shows
# so many lines of the output's end, more where it did not pass.
part() { # name, seconds at most, lines, command...
    local name=$1 limit=$2 lines=$3 result status begin=$SECONDS
    shift 3
    [ "$limit" -lt "$(left)" ] || limit=$(left)
    if [ "$limit" -lt 5 ]; then
        left_out "$name" "no time"
        return
    fi
    timeout -k 5 "$limit" "$@" >"$out/now.log" 2>&1
    status=$?
    case $status in
    0) result=passed ;;
    77) result="FAILED, saw no device" ;; # nvidia-smi did
    124 | 137) result="stopped after $limit s" ;;
    *) result="FAILED, status $status" ;;
    esac
    if [ "$result" != passed ]; then
        failed=1
        [ "$lines" -gt 15 ] || lines=15
    fi
    result=$(printf '%-28s %-24s %4d s' "$name" "$result" $((SECONDS - begin)))
    summary+=("$result")
    echo "== $result"
    tail -n "$lines" "$out/now.log"
    { echo "==== $result" && cat "$out/now.log"; } >>"$out/all.txt"
    rm -f "$out/now.log"
}

left_out() { # name, why
    summary+=("$(printf '%-28s left out: %s' "$1" "$2")")
}

has_pytorch() {
    python3 -c 'import importlib.util as i
exit(not all(map(i.find_spec, ["torch", "transformers"])))' || { left_out PyTorch "not here" && false; }
}

# A part that, where it fails, runs once more without what emulation knows least of.
check_part() { # as part
    local before=$failed
    failed=0
    part "$@"
    [ $failed -eq 0 ] || part "$1_apart" 40 "$3" env REGLA_CUDA_WITHOUT=overlap "${@:4}"
    failed=$((before | failed))
}

stage_check() {
    local program formats weights kv activations text=()
    check_part kernels_check 120 1 "$programs/kernels" check
    check_part golden_f32 150 0 "$regla" check --device cuda --state-memory 64M --weights f32 \
        --kv f32 --reproducibility tests/golden/*/
    check_part golden 60 0 "$regla" check --device cuda --state-memory 64M tests/golden/*/
    for program in "$programs"/cuda_test_*; do
        text=()
        [ "${program##*_}" != model ] || [ ! -r "$programs/text.txt" ] ||
            text=("$programs/text.txt" 8192)
        check_part "${program##*/}" 90 1 "$program" "${text[@]}"
    done
    for formats in "bf16 f16 f32" "f16 bf16 f32" "q8 f16 f32" "bf16 f16 16bit"; do
        read -r weights kv activations <<<"$formats"
        check_part "bits_${weights}_$activations" 60 0 "$regla" check --device cuda \
            --state-memory 64M --bits-only --weights "$weights" --kv "$kv" \
            --activations "$activations" tests/golden/*/
    done
}

stage_kernels() {
    part kernels_time 180 100 "$programs/kernels" time
    # the same products by cuBLAS
    has_pytorch && part products 60 12 python3 loadtest/cuda_transformers.py --products
}

sanitize() { # tool, what it runs, seconds at most, command...
    part "$1_$2" "$3" 1 compute-sanitizer --tool "$1" --error-exitcode 9 --target-processes all \
        "${@:4}"
}

stage_sanitize() {
    local check=("$regla" check --device cuda --state-memory 16M --weights f32 --kv f32)
    local few=(tests/golden/{hybrid_regla,sliding_t5}/) more=(tests/golden/{gla_fla,deltanet}/)
    if ! command -v compute-sanitizer >/dev/null; then
        left_out sanitize "no compute-sanitizer"
        return
    fi
    sanitize memcheck few 60 "${check[@]}" "${few[@]}"
    sanitize racecheck few 60 "${check[@]}" "${few[@]}"
    sanitize memcheck kernels 90 "$programs/kernels" check
    sanitize racecheck kernels 90 "$programs/kernels" check
    sanitize memcheck more 45 "${check[@]}" "${more[@]}"
    sanitize racecheck more 45 "${check[@]}" "${more[@]}"
    sanitize initcheck few 45 "${check[@]}" "${few[@]}"
    sanitize synccheck few 45 "${check[@]}" "${few[@]}"
}

stage_bench() {
    part bench_6l 60 20 "$regla" bench --device cuda --preset regla-6l --weights bf16 --pp 2048 \
        --tg 64,1024,8192
    # what it is worth that a kernel begins while the one before it ends
    part bench_6l_apart 30 20 env REGLA_CUDA_WITHOUT=overlap "$regla" bench --device cuda \
        --preset regla-6l --weights bf16 --pp 0 --tg 64,1024
    # and that tensor cores multiply with one number of bf16 for an input, not two
    part bench_12l 90 40 "$regla" bench --device cuda --preset regla-160m --weights bf16 \
        --activations f32,16bit --pp 2048 --tg 64 --batch 1,64,256 --operations
    part bench_softmax 90 30 "$regla" bench --device cuda --preset softmax-160m --weights bf16 \
        --pp 2048 --tg 64 --depth 0,2048 --batch 1,64 --operations
}

# Streams over HTTP beside `regla bench`, and a step by cause.
stage_serve() {
    python3 -c 'import httpx' 2>/dev/null || { left_out serve "no httpx here" && return; }
    part serve 120 12 env PATH="$programs:$PATH" python3 loadtest/overhead.py --binary "$regla" \
        --device cuda --streams 1,256 --length 256 --repeat 3 --no-plots --out "$out/serve"
    mv "$out/serve/overhead.csv" "$out/" 2>/dev/null
    rm -rf "$out/serve"
}

stage_study() {
    part study 300 40 "$regla" study --device cuda --systems regla,hybrid_regla,softmax \
        --out "$out/study"
    # few files come back from a lent machine
    mv "$out"/study/study.{csv,json} "$out/" 2>/dev/null
    rm -rf "$out/study"
}

stage_transformers() {
    local site=
    has_pytorch || return
    if [ -d "$folder/wheels" ]; then
        site=$programs/site # where they were unpacked, which goes when this ends
        part wheels 60 0 python3 -m pip install -q --no-index --no-deps --no-compile \
            --no-cache-dir --target "$site" "$folder"/wheels/*.whl
    fi
    part transformers "$(left)" 40 env PYTHONUNBUFFERED=1 ${site:+PYTHONPATH=$site} python3 \
        loadtest/cuda_transformers.py --regla "$regla" --seconds "$(($(left) - 60))" \
        --out "$out/transformers.csv"
}

run() {
    local stages=("$@") stage
    [ ${#stages[@]} -gt 0 ] || read -ra stages <<<"$all_stages"
    for stage in "${stages[@]}"; do
        if ! declare -F "stage_$stage" >/dev/null; then
            echo "cuda_session: no stage $stage (known: $all_stages)" >&2
            exit 2
        fi
    done
    find_programs
    regla=$programs/regla
    if [ ! -x "$regla" ]; then
        echo "cuda_session: no $folder/programs.tar.xz and no build/cuda/regla: first pack, or" \
            "make cuda" >&2
        exit 1
    fi
    mkdir -p "$out"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null |
        tee -a "$out/all.txt" || { echo "cuda_session: skipped: no device"; exit 77; }
    # as long as somebody has it open, the driver keeps what every process would have to wait for
    { exec 9</dev/nvidia0; } 2>/dev/null
    for stage in "${stages[@]}"; do
        "stage_$stage"
    done
    echo "== summary after $SECONDS s"
    printf '%s\n' "${summary[@]}" | tee -a "$out/all.txt"
    exit $failed
}

case ${1:-} in
pack) pack ;;
run) shift && run "$@" ;;
*) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$self" && exit 2 ;;
esac
