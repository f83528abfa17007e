#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# loadtest/cuda_session.sh where things fail: programs that hang, fail or are missing, no device, a
# session that is killed. All programs are false ones; it takes seconds. (A session that goes well is
# rehearsed on the emulated device: the head of that script.)
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# A program that says what it was asked for, and, where $MISBEHAVE is a pattern of that, does as
# $MISBEHAVIOUR says.
program() { # file, lines of output
    mkdir -p "${1%/*}"
    cat >"$1" <<EOF
#!/bin/bash
asked="\${0##*/} \$* \${REGLA_CUDA_WITHOUT:+without \$REGLA_CUDA_WITHOUT}"
echo "\$asked" >>"$work/asked"
if [ -n "\${MISBEHAVE:-}" ] && [[ \$asked =~ \$MISBEHAVE ]]; then
    [ \$MISBEHAVIOUR = hang ] && exec sleep 60
    exit \$MISBEHAVIOUR # 124: as one that was stopped
fi
$2
EOF
    chmod +x "$1"
}

json='{"results": [{"model": "m", "test": "tg64", "batch": 1, "tokens_per_second": 100,
    "spread": 0.1, "share_of_limit": 0.25}]}'
table_of_bench='bf16    f16  f32          2     1  tg64                 25.5    0.0%  1.7 GB/s of weights     27.8%'
program "$work/programs/regla" "case \"\$*\" in
    *--json*) echo '$json' ;;
    *help*) echo '  --products LIST' ;;
    bench*) echo '$table_of_bench' ;;
    check*) echo 'check: 2 passed, 0 failed' ;;
    study*) mkdir -p \"\${!#}\"; touch \"\${!#}\"/study.{csv,json} ;;
esac"
program "$work/programs/kernels" "echo 'kernels: 5 passed, 0 failed'"
program "$work/programs/cuda_test_launch" "echo 'launch: 14 passed, 0 failed'"
program "$work/programs/cuda_test_model" "echo 'model: 3 passed, 0 failed'"
program "$work/programs/cuda_test_product_cublaslt" "echo 'product-cublaslt: 9 passed, 0 failed'"
program "$work/programs/cuda_chain" "echo 'sum: 33 kernels, gaps 30.00, times 60.00'"
program "$work/tools/nvidia-smi" "echo 'A false GPU, 1.0, 1 MiB'"
# as version 2025.3 prints it
program "$work/tools/ncu" "cat <<'KERNELS'
  void stream_kernel<1, 2>(work) (132, 1, 1)x(256, 1, 1), Context 1, Stream 13, Device 0, CC 9.0
    Duration                         us         4.50
    DRAM Throughput                   %        31.20
  stream_kernel(work) (132, 1, 1)x(256, 1, 1), Context 1, Stream 13, Device 0, CC 9.0
    Duration                         us         5.50
    DRAM Throughput                   %        32.20
KERNELS"
program "$work/tools/compute-sanitizer" "echo memcheck"
# Python with PyTorch, and without what only tests have. Its script `-` looks for cuBLASLt.
program "$work/tools/python3" "case \"\$*\" in
    -) [ -n \"\${NO_CUBLASLT:-}\" ] || echo /false/libcublasLt.so.13 ;;
    *find_spec*) exit 0 ;;
    *cuda_transformers*|*'pip install'*|*overhead*) exit 0 ;;
    *) PYTHONPATH=$work/none exec $(command -v python3) \"\$@\" ;;
esac"

# Runs a session; what of the environment is to be otherwise comes first.
session() { # NAME=VALUE..., stages
    rm -rf "$work/out" "$work/asked"
    touch "$work/asked"
    env CUDA_SESSION="$work/none" PROGRAMS="$work/programs" OUT="$work/out" \
        PATH="$work/tools:$PATH" "${before[@]}" loadtest/cuda_session.sh run "$@" \
        >"$work/said" 2>&1
    status=$?
    before=()
}

expect() { # what, command
    if "${@:2}" >/dev/null 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $1: ${*:2}"
        sed 's/^/    /' "$work/out/table.txt" 2>/dev/null
    fi
}

in_table() { # what, pattern of a line
    expect "$1" grep -qE -- "$2" "$work/out/table.txt"
}

not_in_table() { # what, pattern of a line
    expect "$1" eval "! grep -qE -- '$2' '$work/out/table.txt'"
}

before=()
all="all goes well"
session
expect "$all" [ $status -eq 0 ]
in_table "$all" '^# A false GPU, 1.0, 1 MiB; '
for part in smoke_launch smoke_hybrid_regla smoke_gla_fla bench_6l overlap kernels_check bench_12l \
    bench_12l_prompts bench_12l_16bit smollm2-135m mamba2-130m_texts lfm2-350m_texts rows switches \
    golden_f32 cuda_test_model cuda_test_product_cublaslt bits_q8_f32 serve serve_short kernels_time_apart \
    prompts_f16_cublaslt bench_softmax timestamps_regla-6l timestamps_smollm2-135m \
    timestamps_mamba2-130m timestamps_texts ncu transformers memcheck_few study; do
    in_table "$all" "^$part +passed "
done
not_in_table "$all" 'left out|FAILED|stopped|under way'
in_table "$all" '^bench_6l .* tg64 b1 25.5/s 27.8%$'
in_table "$all" '^switches .*m tg64, batch 1 100.0/s 25.0 %.*; overlap 1.000x.*; all of them 1.000x.*; noise 0.0 %.*; within noise in tg64 b1: overlap, '
in_table "$all" '^ncu .* stream_kernel 2 times 5.00 us, DRAM 31.7 %$'
in_table "$all" '^timestamps_texts .* 33 kernels, gaps 30.00, times 60.00$'
in_table "$all" '^kernels_check .* kernels: 5 passed, 0 failed$'
expect "$all: ncu is the last" eval "tail -n 1 '$work/out/table.txt' | grep -q '^ncu '"
expect "$all: files" [ "$(find "$work/out" -type f | wc -l)" -le 8 ]
expect "$all: every switch" [ "$(grep '^regla bench .*--tg 256 .*without [a-z]*$' "$work/asked" | sort -u | wc -l)" -eq \
    "$(grep -c '    X(' engine/cuda/switches.h)" ]

# all that this machine has, but NVIDIA's tools
mkdir "$work/bare"
ln -s /usr/bin/* /bin/* "$work/bare/" 2>/dev/null
rm -f "$work"/bare/{nvidia-smi,ncu,compute-sanitizer}
before=(PATH="$work/bare" CUDA_TOOLS=)
session smoke ncu sanitize
expect "no tools" [ $status -eq 0 ]
in_table "no nvidia-smi" '^# no nvidia-smi; '
in_table "no nvidia-smi" '^smoke_gla_fla +passed '
in_table "no ncu" '^ncu +left out: no ncu'
in_table "no compute-sanitizer" '^sanitize +left out: no compute-sanitizer'

before=(NO_CUBLASLT=yes)
session check
expect "no cuBLASLt" [ $status -eq 0 ]
in_table "no cuBLASLt" '^cuda_test_product_cublaslt +left out: no libcublasLt$'
in_table "no cuBLASLt" '^cuda_test_model +passed '

before=(MISBEHAVE=cuda_test_launch MISBEHAVIOUR=77)
session
expect "no device" [ $status -eq 77 ]
not_in_table "no device" bench_6l

before=(MISBEHAVE="^cuda_test_launch" MISBEHAVIOUR=hang LIMITS_PERCENT=5)
session smoke latency
expect "a launch that hangs" [ $status -eq 1 ]
in_table "a launch that hangs" '^smoke_launch +stopped after 0.7 s '
in_table "a launch that hangs" '^smoke_launch_apart +stopped '
in_table "a launch that hangs" '^smoke_launch_memcheck +passed '
in_table "a launch that hangs" '^latency +left out: smoke_launch failed'
not_in_table "a launch that hangs" 'bench_6l|smoke_hybrid'
expect "memcheck of the smallest" grep -q '^compute-sanitizer .*cuda_test_launch' "$work/asked"

before=(MISBEHAVE="^regla check.*gla_fla/ $" MISBEHAVIOUR=1)
session smoke latency check
expect "a golden case that fails" [ $status -eq 1 ]
in_table "a golden case that fails" '^smoke_hybrid_regla +passed '
in_table "a golden case that fails" '^smoke_gla_fla +FAILED, status 1 '
in_table "a golden case that fails, apart" '^smoke_gla_fla_apart +passed '
in_table "a golden case that fails" '^smoke_gla_fla_memcheck +passed '
in_table "a golden case that fails" '^check +left out: smoke_gla_fla failed'

# a part that hangs, and a device that answers after it; one that answers without overlap; none
before=(MISBEHAVE="^kernels check $" MISBEHAVIOUR=124)
session kernels batches
expect "a part that hangs" [ $status -eq 1 ]
in_table "a part that hangs" '^kernels_check +stopped after 60.0 s '
in_table "a part that hangs" '^after_kernels_check +passed '
in_table "a part that hangs" '^kernels_check_apart +passed '
in_table "a part that hangs" '^bench_12l +passed '
cp "$work/programs/cuda_test_launch" "$work/launch"
program "$work/programs/cuda_test_launch" "[ ! -e $work/hung ] || [ -n \"\$REGLA_CUDA_WITHOUT\" ] || exit 124"
program "$work/programs/kernels" "touch $work/hung; exit 124"
session kernels batches
in_table "a device that hangs with overlap" '^after_kernels_check +stopped '
in_table "a device that hangs with overlap" '^after_kernels_check_apart +passed '
in_table "a device that hangs with overlap" '^# from here on without overlap'
in_table "a device that hangs with overlap" '^bench_12l +passed '
expect "without overlap" grep -q '^regla bench .* without overlap$' "$work/asked"
rm -f "$work/hung"
program "$work/programs/cuda_test_launch" "[ ! -e $work/hung ] || exit 124"
session kernels batches check
in_table "a device that hangs" '^after_kernels_check_apart +stopped '
in_table "a device that hangs" '^kernels_check_apart +left out: the device did not answer'
in_table "a device that hangs" '^batches +left out: the device did not answer'
in_table "a device that hangs" '^check +left out: the device did not answer'
rm -f "$work/hung"
program "$work/programs/kernels" "echo 'kernels: 5 passed, 0 failed'"
mv "$work/launch" "$work/programs/cuda_test_launch"

before=(MISBEHAVE="^regla bench.* without row$" MISBEHAVIOUR=1)
session switches
expect "a switch that fails" [ $status -eq 1 ]
in_table "a switch that fails" '^switches +FAILED, status 1 .*; row failed; early 1.000x'

before=(MISBEHAVE="^regla bench.* without row$" MISBEHAVIOUR=hang LIMITS_PERCENT=10)
session switches
in_table "a switch that hangs" '^switches +stopped after .*; overlap 1.000x .*; row stopped$'
in_table "a switch that hangs" '^after_switches +passed '

# a profiler whose program is in a session of its own, and outlives it
cp "$work/tools/ncu" "$work/ncu"
program "$work/tools/ncu" "setsid sleep 61 & echo \$! >$work/profiled; sleep 60"
before=(LIMITS_PERCENT=10)
session ncu study
expect "what a part leaves running: it ran" [ -s "$work/profiled" ]
# at most a zombie, where nobody waits for it
expect "what a part leaves running" eval "! grep -q sleep /proc/$(cat "$work/profiled")/cmdline"
in_table "what a part leaves running" '^ncu +stopped after [56].. s '
in_table "what a part leaves running" '^after_ncu +passed '
in_table "what a part leaves running" '^study +passed '
mv "$work/ncu" "$work/tools/ncu"

# programs that hang one after the other take the time of their stage, and no more
before=(MISBEHAVE="^regla check" MISBEHAVIOUR=hang LIMITS_PERCENT=7)
session check latency
in_table "a stage that hangs" '^golden_f32_apart +stopped '
in_table "a stage that hangs" '^bits_q8_f32 +left out: no time left to its stage$'
in_table "a stage that hangs" '^bench_6l +passed '

# nvidia-smi that does not end when asked to
cp "$work/tools/nvidia-smi" "$work/smi"
program "$work/tools/nvidia-smi" "trap '' TERM; for ((;;)); do sleep 1; done"
began=$SECONDS
before=(SECONDS_AT_MOST=40)
session kernels
expect "nvidia-smi that hangs" [ $((SECONDS - began)) -lt 25 ]
in_table "nvidia-smi that hangs" '^# no nvidia-smi; '
in_table "nvidia-smi that hangs" '^kernels_check +passed '
mv "$work/smi" "$work/tools/nvidia-smi"

# Equal runs that are 2 % apart: a switch that brings 1 % shows nothing, one that brings 50 % does.
cp "$work/programs/regla" "$work/regla"
program "$work/programs/regla" "case \"\$REGLA_CUDA_WITHOUT\" in
    overlap) [ -e $work/again ] && speed=98 || speed=100; touch $work/again ;;
    row) speed=99 ;;
    bulk) speed=50 ;;
    *) speed=100 ;;
esac
echo '$json' | sed \"s/: 100,/: \$speed,/\""
python3 loadtest/cuda_switches.py --regla "$work/programs/regla" --bench "" \
    --without overlap,row,bulk >"$work/switches" 2>&1
expect "noise" grep -qx 'figure: noise 2.0 %' "$work/switches"
expect "noise" grep -qx 'figure: overlap, again 1.020x' "$work/switches"
expect "noise" grep -qx 'figure: within noise in tg64 b1: overlap, row, all of them' "$work/switches"
mv "$work/regla" "$work/programs/regla"

before=(SECONDS_AT_MOST=0)
session kernels
in_table "no time" '^kernels_check +left out: no time'

session nonsense
expect "a stage that is not there" [ $status -eq 2 ]

# killed in the middle, as a command is that runs into the tool's limit
rm -rf "$work/out"
(
    export MISBEHAVE="^kernels check" MISBEHAVIOUR=hang
    CUDA_SESSION="$work/none" PROGRAMS="$work/programs" OUT="$work/out" PATH="$work/tools:$PATH" \
        exec setsid loadtest/cuda_session.sh run kernels >/dev/null 2>&1
) &
for ((i = 0; i < 200; i++)); do
    grep -q '^kernels_check +*under way' "$work/out/table.txt" 2>/dev/null && break
    sleep 0.05
done
kill -KILL -- -$!
wait 2>/dev/null
in_table "killed" '^smoke_launch +passed '
in_table "killed" '^kernels_check +under way since [0-9]+ s'

# what comes with the session imports nothing that the machine does not have
mkdir -p "$work/absent"
for module in openapi_core jsonschema matplotlib; do
    echo "raise ImportError('$module is not there')" >"$work/absent/$module.py"
done
if python3 -c 'import httpx' 2>/dev/null; then
    for program in overhead cuda_transformers cuda_switches; do
        expect "imports of $program.py" env PYTHONPATH="$work/absent" python3 loadtest/$program.py --help
    done
fi

# a pack that something is missing from
pack() { # what it has to say, NAME=VALUE...
    env CUDA_SESSION="$work/packed" "${@:2}" loadtest/cuda_session.sh pack >"$work/said" 2>&1
    expect "pack, $1: status" [ $? -eq 1 ]
    expect "pack: $1" grep -qF "$1" "$work/said"
}
mkdir -p "$work/few"
for tool in bash env dirname readlink; do
    ln -s "$(command -v $tool)" "$work/few/$tool"
done
pack "no text /nowhere" PRESET=cuda-emulated TEXT=/nowhere
mkdir -p "$work/tree/loadtest" "$work/shared/data/wikitext-2"
cp loadtest/cuda_session.sh "$work/tree/loadtest/"
git init -q "$work/tree"
git -C "$work/tree" -c user.name=n -c user.email=e commit -q --allow-empty -m first
git -C "$work/tree" worktree add -q "$work/elsewhere/tree" --detach
cp -r "$work/tree/loadtest" "$work/elsewhere/tree/"
for tree in "$work/tree" "$work/elsewhere/tree"; do
    rm -f "$work/shared/data/wikitext-2/test.txt"
    PRESET=cuda-emulated CUDA_SESSION="$work/packed" "$tree/loadtest/cuda_session.sh" pack >"$work/said" 2>&1
    expect "the default text, missing" grep -q 'no text .*/shared/data/wikitext-2/test.txt' "$work/said"
    touch "$work/shared/data/wikitext-2/test.txt"
    PRESET=cuda-emulated CUDA_SESSION="$work/packed" "$tree/loadtest/cuda_session.sh" pack >"$work/said" 2>&1
    expect "the default text" eval "! grep -q 'no text' '$work/said'"
done
program "$work/few/nvcc" ""
pack "no wrk" PATH="$work/few"

echo "cuda-session: $passed passed, $failed failed"
[ $failed -eq 0 ]
