#!/bin/bash
# Everything that wants a GPU, in one go, for a machine that is lent for minutes and has nothing but
# CUDA and PyTorch. Where the machine has what deploy/deps.sh installs, `make test-cuda` is simpler.
#
#   loadtest/cuda_session.sh pack
#       here, without a GPU: builds and puts the programs and their libraries into one file in
#       $CUDA_SESSION (.cuda-session), to be carried along and kept out of git; with them $TEXT,
#       of which the shipped model's log-probabilities are compared (WikiText-2's). Fails where
#       what git tracks and this are more than $MOST_MIB (64) together
#   loadtest/cuda_session.sh run [STAGE...]
#       there: check kernels sanitize bench study transformers, or those named. Stops by itself
#       before SECONDS_AT_MOST (570) are over; what did not fit is said to be left out. Logs go to
#       $OUT (./cuda-session); the short table comes last.
#
# For machines with calls of at most ten minutes, three calls:
#   run check kernels bench    run sanitize study    run transformers
# Status: 77 without a device, 1 when anything failed.
set -uo pipefail
self=$(readlink -f "$0")
cd "$(dirname "$self")/.." || exit 1

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
    for program in build/$preset/{regla,kernels,cuda_test_*}; do
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
    rm -rf "$programs"
    bytes=$( (git ls-files -z; find "$folder" -type f -print0) | du -cb --files0-from=- | tail -n 1)
    echo "$((${bytes%%[!0-9]*} >> 20)) MiB to carry of ${MOST_MIB:-64}:" "$(du -h "$folder"/*)"
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

# A part of a stage: runs it with what time is left, keeps its output, notes how it ended.
part() { # name, seconds at most, command...
    local name=$1 limit=$2 result begin=$SECONDS
    shift 2
    [ "$limit" -lt "$(left)" ] || limit=$(left)
    if [ "$limit" -lt 5 ]; then
        summary+=("$(printf '%-28s left out: no time' "$name")")
        return 1
    fi
    echo "== $name"
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
    result=$?
    case $result in
    0) result=passed ;;
    77) result=skipped ;;
    124 | 137) result="stopped after $limit s" failed=1 ;;
    *) result="FAILED, status $result" failed=1 ;;
    esac
    summary+=("$(printf '%-28s %-24s %4d s' "$name" "$result" $((SECONDS - begin)))")
    [ "$result" = passed ]
}

shows() { # name, lines
    tail -n "$2" "$out/$1.log" 2>/dev/null
}

stage_check() {
    local program formats weights kv
    part golden_f32 150 "$regla" check --device cuda --state-memory 64M --weights f32 --kv f32 \
        --reproducibility tests/golden/*/ || shows golden_f32 15
    part golden 60 "$regla" check --device cuda --state-memory 64M tests/golden/*/ ||
        shows golden 15
    if [ -r "$programs/text.txt" ]; then
        part model_text 90 "$programs/cuda_test_model" "$programs/text.txt" 8192
        shows model_text 5
    fi
    for program in "$programs"/cuda_test_*; do
        part "$(basename "$program")" 60 "$program" || shows "$(basename "$program")" 15
    done
    for formats in "bf16 f16" "f16 bf16" "q8 f16"; do
        read -r weights kv <<<"$formats"
        part "bits_$weights" 60 "$regla" check --device cuda --state-memory 64M --bits-only \
            --weights "$weights" --kv "$kv" tests/golden/*/ || shows "bits_$weights" 15
    done
}

stage_kernels() {
    part kernels 240 "$programs/kernels"
    shows kernels 120
}

stage_sanitize() {
    local tool
    if ! command -v compute-sanitizer >/dev/null; then
        summary+=("sanitize                     left out: no compute-sanitizer")
        return
    fi
    for tool in memcheck racecheck initcheck synccheck; do
        part "sanitize_$tool" 120 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            --target-processes all \
            "$regla" check --device cuda --state-memory 16M --weights f32 --kv f32 \
            tests/golden/{hybrid_regla,gla_fla,sliding_t5,deltanet}/ ||
            shows "sanitize_$tool" 15
    done
}

stage_bench() {
    part bench_6l 60 "$regla" bench --device cuda --preset regla-6l --weights bf16 --pp 2048 \
        --tg 64,1024,8192
    # what it is worth that a kernel begins while the one before it ends
    part bench_6l_apart 30 env REGLA_CUDA_OVERLAP=0 "$regla" bench --device cuda \
        --preset regla-6l --weights bf16 --pp 0 --tg 64,1024
    part bench_12l 60 "$regla" bench --device cuda --preset regla-160m --weights bf16 --pp 0 \
        --tg 64 --batch 1,64,256 --operations
    part bench_softmax 60 "$regla" bench --device cuda --preset softmax-160m --weights bf16 \
        --pp 2048 --tg 64 --depth 0,2048 --batch 1,64 --operations
    shows bench_6l 20
    shows bench_6l_apart 20
    shows bench_12l 30
    shows bench_softmax 30
}

stage_study() {
    local file
    part study 300 "$regla" study --device cuda --systems regla,hybrid_regla,softmax \
        --out "$out/study"
    shows study 40
    # few files, and none deep, come back from a lent machine
    for file in "$out"/study/study.{csv,json}; do
        [ -f "$file" ] && mv "$file" "$out/"
    done
    rm -rf "$out/study"
}

stage_transformers() {
    local seconds
    seconds=$(($(left) - 60))
    part transformers "$(left)" env PYTHONUNBUFFERED=1 python3 loadtest/cuda_transformers.py \
        --regla "$regla" --seconds "$seconds" --out "$out/transformers.csv"
    shows transformers 20
}

run() {
    local stages=("$@") stage
    [ ${#stages[@]} -gt 0 ] || stages=(check kernels sanitize bench study transformers)
    find_programs
    regla=$programs/regla
    if [ ! -x "$regla" ]; then
        echo "cuda_session: no $folder/programs.tar.xz and no build/cuda/regla: first pack, or" \
            "make cuda" >&2
        exit 1
    fi
    mkdir -p "$out"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null ||
        { echo "cuda_session: skipped: no device"; exit 77; }
    for stage in "${stages[@]}"; do
        "stage_$stage" || true
    done
    echo "== summary after $SECONDS s"
    printf '%s\n' "${summary[@]}"
    # eight files come back at most: all logs as one
    for stage in "$out"/*.log; do
        echo "==== $stage"
        cat "$stage"
    done >"$out/all.txt" && rm -f "$out"/*.log
    exit $failed
}

case ${1:-} in
pack) pack ;;
run) shift && run "$@" ;;
*) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$self" && exit 2 ;;
esac
