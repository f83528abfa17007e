#!/bin/bash
# Builds llama.cpp for loadtest/peers.py, and `turns`, which runs it beside our engine, in
# build/peers: from the sdist of llama-cpp-python, which carries the whole of it, pinned below. Ten
# minutes and more on two cores; goes on where it was stopped.
# Usage: loadtest/llama/build.sh [server]     server: llama-server, too, for load.py --peer
# Environment: REGLA_BUILD (build/release): where our libraries are; JOBS: compilers at once
set -euo pipefail
cd "$(dirname "$0")/../.."

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
package=llama_cpp_python-$version
case ${1:-} in "" | server) ;; *)
    echo "usage: loadtest/llama/build.sh [server]" >&2
    exit 2
    ;;
esac
regla=$(cd "${REGLA_BUILD:-build/release}" && pwd)
root=$PWD
folder=$root/build/peers
source=$folder/$package/vendor/llama.cpp

unpack() {
    if [ -f "$package/unpacked" ]; then
        return
    fi
    if [ ! -f "$package.tar.gz" ]; then
        echo "peers: downloading $package" >&2
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest . \
            --no-binary llama-cpp-python "llama-cpp-python==$version"
    fi
    echo "$sha256  $package.tar.gz" | sha256sum --check --quiet
    rm -rf "$package"
    tar xzf "$package.tar.gz"
    touch "$package/unpacked"
}

build_llama() {
    if [ ! -f llama/build.ninja ]; then
        cmake -G Ninja -S "$source" -B llama --log-level=WARNING -DCMAKE_BUILD_TYPE=Release \
            -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_CCACHE=OFF \
            -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
            -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_NUMBER=0 \
            -DLLAMA_BUILD_COMMIT="$package" >/dev/null
    fi
    cmake --build llama -j "${JOBS:-$(nproc)}" --target "$@"
}

build_turns() {
    local file objects=()
    for file in turns peer; do
        cc -c -O2 -Wall -Wextra -std=gnu11 -I"$root" -I"$source/include" -I"$source/ggml/include" \
            "$root/loadtest/llama/$file.c" -o "$file.o"
        objects+=("$file.o")
    done
    # shellcheck disable=SC2046  # a list
    c++ -o bin/turns "${objects[@]}" "$regla"/libregla_{server,api,engine}.a \
        llama/src/libllama.a llama/ggml/src/libggml{,-cpu,-base}.a -fopenmp -lpthread -ldl -lm \
        $(pkg-config --libs jansson libpcre2-8 libutf8proc libxxhash libmicrohttpd cairo)
}

mkdir -p "$folder/bin"
cd "$folder"
unpack
build_llama llama-bench llama-batched-bench
build_turns
for program in llama-bench llama-batched-bench; do
    ln -sf "../llama/bin/$program" "bin/$program"
done
if [ "${1:-}" = server ]; then
    build_llama llama-server
    ln -sf ../llama/bin/llama-server bin/llama-server
fi
