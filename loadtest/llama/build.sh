#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds llama.cpp for loadtest/peers.py, `turns`, which runs it beside our engine, and `divergence`,
# in build/peers: from the sdist of llama-cpp-python, which carries the whole of it, pinned below. Ten
# minutes and more on two cores; goes on where it was stopped.
# Usage: loadtest/llama/build.sh [server] [perplexity]
#   server: llama-server, too, for load.py --peer; perplexity: llama-perplexity, for divergence.py
# Environment: REGLA_BUILD (build/release): where our libraries are; JOBS: compilers at once;
#   LLAMA_SOURCE: a checkout of ik_llama.cpp (or of llama.cpp) to build instead, with no programs but
#   ours, in build/peers-NAME, NAME being the checkout's folder's; CFLAGS, CXXFLAGS: as CMake takes
#   them when the folder is new. Where the processor has AMX and the kernel forbids it (llama.cpp dies
#   of SIGSEGV at ldtilecfg), give both -mno-amx-tile -mno-amx-int8 -mno-amx-bf16
set -euo pipefail
cd "$(dirname "$0")/../.."

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
package=llama_cpp_python-$version
more=()
for program in "$@"; do
    case $program${LLAMA_SOURCE:+ of a checkout} in server | perplexity) more+=("llama-$program") ;; *)
        echo "usage: loadtest/llama/build.sh [server] [perplexity], or LLAMA_SOURCE=folder loadtest/llama/build.sh" >&2
        exit 2
        ;;
    esac
done
regla=$(cd "${REGLA_BUILD:-build/release}" && pwd)
root=$PWD
if [ -n "${LLAMA_SOURCE:-}" ]; then
    source=$(cd "$LLAMA_SOURCE" && pwd)
    name=$(basename "$source")
    folder=$root/build/peers-$name
    commit=$(git -C "$source" rev-parse --short HEAD 2>/dev/null || echo unknown)
    name+=-$commit
    programs=()
else
    folder=$root/build/peers
    source=$folder/$package/vendor/llama.cpp
    name=$package
    programs=(llama-bench llama-batched-bench "${more[@]}")
fi

unpack() {
    if [ -f "$package/unpacked" ]; then
        return
    fi
    if [ ! -f "$package.tar.gz" ]; then
        echo "peers: downloading $package" >&2
        [ -x "$root/tests/.venv/bin/python" ] || "$root/tests/scripts/venv.sh"
        "$root/tests/.venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --dest . \
            --no-binary llama-cpp-python "llama-cpp-python==$version"
    fi
    echo "$sha256  $package.tar.gz" | sha256sum --check --quiet
    rm -rf "$package"
    tar xzf "$package.tar.gz"
    touch "$package/unpacked"
}

# ik_llama.cpp's attention to keys and values of 4 and 5 bits is left out: it takes long to compile.
build_llama() {
    if [ ! -f llama/CMakeCache.txt ]; then
        cmake -S "$source" -B llama --log-level=WARNING --no-warn-unused-cli \
            -DCMAKE_BUILD_TYPE=Release \
            -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_CCACHE=OFF -DGGML_IQK_FA_ALL_QUANTS=OFF \
            -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
            -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_NUMBER=0 \
            -DLLAMA_BUILD_COMMIT="$name" >/dev/null
    fi
    cmake --build llama -j "${JOBS:-$(nproc)}" --target "$@"
}

build_ours() {
    local file flags=()
    if [ -d "$source/ggml/src/iqk" ]; then
        flags+=(-DPEER_IK)
    fi
    for file in peer turns divergence; do
        cc -c -O2 -Wall -Wextra -std=gnu11 "${flags[@]}" \
            -I"$root" -I"$source/include" -I"$source/ggml/include" \
            "$root/loadtest/llama/$file.c" -o "$file.o"
    done
    for file in turns divergence; do
        # shellcheck disable=SC2046  # a list
        c++ -o "bin/$file" "$file.o" peer.o "$regla"/libregla_{bench,engine,lib}.a \
            llama/src/libllama.a -Wl,--start-group llama/ggml/src/libggml*.a -Wl,--end-group \
            -fopenmp -lpthread -ldl -lm \
            $(pkg-config --libs jansson libpcre2-8 libutf8proc)
    done
}

mkdir -p "$folder/bin"
cd "$folder"
if [ -z "${LLAMA_SOURCE:-}" ]; then
    unpack
fi
build_llama llama "${programs[@]}"
build_ours
for program in "${programs[@]}"; do
    ln -sf "../llama/bin/$program" "bin/$program"
done
ln -sfn "$source" source
echo "$name" >name
