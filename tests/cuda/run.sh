#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests of the CUDA backend. Usage: tests/cuda/run.sh emulated|races|all-races|compile|device
#   emulated  on the CPU (build/cuda-emulated, which must be built)
#   races     some of it where accesses are watched (build/cuda-races, which must be built)
#   all-races all of it, which takes long
#   compile   build/cuda, if there is an nvcc
#   device    build/cuda on the machine's GPU; skipped, status 77, where there is none
set -uo pipefail
cd "$(dirname "$0")/../.."

cases=(tests/golden/*/)
# Each of the kinds of mixers and windows, for what takes long where a GPU is emulated.
few=(tests/golden/{hybrid_regla,gla_fla,performer,block_kerple_dpfp,deltanet,sliding_t5,flash,transformer_ls,blocks_branches}/
    tests/golden/{convolutions,gated_convolutions,delta_fla_gated,mamba2,falcon_h1_norm,experts,values_in_keys}/)
# Of those with weights in bf16, the ones that show what is rounded.
bf16=(tests/golden/{block_kerple_dpfp,gla_fla_kv_heads_default_mlp,gpt_neox_tf4,gpt_neox_tf5}/
    tests/golden/{lrpe1_gla_gate_scaled_hidden_norm,regla_small_eps_bf16,sliding_t5}/
    tests/golden/sum_norm_at_its_floor/)
status=0

# A limit of time is for hangs: ten times the slowest program's on an idle machine. Who runs into it is
# named, and counts.
limited() { # command
    local result=0
    timeout --kill-after=30 "$SECONDS_EACH" "$@" || result=$?
    if [ $result -eq 124 ] || [ $result -eq 137 ]; then
        echo "TIMEOUT: $* after $SECONDS_EACH s"
        echo "timeouts: 0 passed, 1 failed"
    fi
    return $result
}

programs() { # build folder
    local program result
    for program in "$1"/cuda_test_* "$1/kernels check"; do
        limited $program # with its argument
        result=$?
        [ $result -eq 0 ] || { [ $result -eq 77 ] && skipped=yes; } || status=1
    done
    return $status
}

check() { # build folder, flags and folders
    limited "$1/regla" check --device cuda --state-memory 64M "${@:2}" | grep -v ^PASS
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
}

# The 1 KiB of __shared__ arrays that common.cuh, SHARED_UNASKED, leaves to a kernel. sample_kernel
# has more, and no dynamic shared memory.
arrays() { # build folder
    nm -CS -t d --defined-only "$1/libregla_cuda.a" 2>/dev/null | awk '
        match($0, /[a-z0-9_]+_kernel[<(].*::[a-z_]+$/) {
            name = substr($0, RSTART); sub(/::[a-z_]+$/, "", name)
            bytes[name] += $2
        }
        END {
            for (name in bytes)
                if (bytes[name] > 1024 && name !~ /^sample_kernel/) {
                    print "FAIL " name ": __shared__ arrays of " bytes[name] " bytes"; failed++
                } else
                    passed++
            print "arrays: " passed + 0 " passed, " failed + 0 " failed"
            exit passed + 0 == 0 || failed > 0
        }' || status=1
}

f32=(--weights f32 --kv f32)
# of weights, KV and activations, whose bits alone are checked
all_formats=("bf16 f16 f32" "f16 bf16 f32" "q8 f16 f32" "q4 f16 f32" "q6 f16 16bit" "bf16 f16 16bit"
    "q8 f16 16bit")
skipped=no
SECONDS_EACH=7200 # all at full size
case ${1:?emulated, races, all-races, compile or device} in
emulated)
    # One after the other, the slow ones first, beside what follows, which takes the other core; each
    # one's output whole.
    SECONDS_EACH=400
    (
        slow="engine attention product sampling draws recurrence model"
        others=$(cd build/cuda-emulated && ls cuda_test_* | sed 's/^cuda_test_//' |
            grep -vxF "${slow// /$'\n'}")
        for program in $slow $others; do
            began=$SECONDS
            limited build/cuda-emulated/cuda_test_$program || status=1
            echo "cuda_test_$program: $((SECONDS - began)) s"
        done
        limited build/cuda-emulated/kernels check || status=1
        exit $status
    ) >build/cuda-emulated/programs.log 2>&1 &
    arrays build/cuda-emulated
    check build/cuda-emulated "${f32[@]}" "${cases[@]}"
    check build/cuda-emulated "${bf16[@]}"
    check build/cuda-emulated "${f32[@]}" --reproducibility "${few[0]}" "${few[1]}"
    # other orders of blocks and threads
    for order in backward 5; do
        REGLA_EMULATION_ORDER=$order check build/cuda-emulated "${f32[@]}" "${few[@]}"
    done
    check build/cuda-emulated --bits-only --weights bf16 --kv f16 "${few[0]}"
    check build/cuda-emulated --bits-only --weights f16 --kv bf16 "${few[1]}"
    check build/cuda-emulated --bits-only --weights q8 --kv f16 "${few[2]}"
    check build/cuda-emulated --bits-only --weights bf16 --kv f16 --activations 16bit "${few[0]}"
    check build/cuda-emulated --bits-only --weights q8 --kv f16 --activations 16bit "${few[1]}"
    REGLA_BINARY=build/cuda-emulated/regla tests/.venv/bin/python -m pytest -q -p no:cacheprovider \
        --timeout "$SECONDS_EACH" tests/http/test_cuda.py || status=1
    PATH=$PWD/tests/.venv/bin:$PATH limited tests/scripts/cuda_session_test.sh || status=1
    wait $! || status=1
    cat build/cuda-emulated/programs.log
    ;;
races)
    build=build/cuda-races
    SECONDS_EACH=1200
    for program in cuda_test_races cuda_test_launch "kernels check"; do
        limited $build/$program || status=1
    done
    check $build "${f32[@]}" "${few[@]}"
    check $build "${bf16[@]:0:3}"
    ;;
all-races)
    build=build/cuda-races
    programs $build
    check $build "${f32[@]}" "${cases[@]}"
    check $build "${bf16[@]}"
    check $build "${f32[@]}" --reproducibility "${few[@]}"
    for order in backward 5; do
        REGLA_EMULATION_ORDER=$order check $build "${f32[@]}" "${few[@]}"
    done
    for formats in "${all_formats[@]}"; do
        read -r weights kv activations <<<"$formats"
        check $build --bits-only --weights "$weights" --kv "$kv" --activations "$activations" \
            "${cases[@]}"
    done
    ;;
compile)
    if ! command -v nvcc >/dev/null; then
        echo "cuda: no nvcc: not compiled for real devices"
        exit 0
    fi
    # One architecture: the others say nothing new, and take as long; and one program that links it.
    # Nothing runs it, so code for the device is not optimised, where this nvcc can leave that out.
    # What is C has the flags of build/dev, whose objects ccache has.
    fast=-O1
    [[ $(nvcc --help) != *--Ofast-compile* ]] || fast+=" --Ofast-compile=max"
    cmake --preset cuda -B build/cuda-90 -DCMAKE_CUDA_ARCHITECTURES=90-real \
        -DCMAKE_BUILD_TYPE=RelWithDebInfo -DREGLA_WERROR=ON -DCMAKE_CUDA_FLAGS_RELWITHDEBINFO="$fast" \
        --log-level=WARNING >/dev/null &&
        cmake --build build/cuda-90 -j "${JOBS:-$(nproc)}" --target kernels 2>&1 |
        sed '/^\[ *[0-9]*%\]/d'
    exit
    ;;
device)
    programs build/cuda
    if [ $skipped = yes ]; then
        echo "cuda: skipped: no CUDA device"
        exit 77
    fi
    check build/cuda "${f32[@]}" --reproducibility "${cases[@]}"
    check build/cuda "${cases[@]}"
    for formats in "${all_formats[@]}"; do
        read -r weights kv activations <<<"$formats"
        check build/cuda --bits-only --weights "$weights" --kv "$kv" --activations "$activations" \
            "${cases[@]}"
    done
    ;;
esac
exit $status
