#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Real clients against build/release/regla, each in an environment of its own under build/clients/:
# - libraries that generate text run tests, and vLLM's own tests run (libraries.py): 4 GB;
# - vllm bench serve, guidellm and aiperf run, and what they send is recorded (record.py): 14 GB.
# Installs what it runs from PyPI, unless it is there; needs python3 with venv (package python3-venv).
# Usage: tests/clients/run.sh [libraries [NAME...] | SCENARIO...]      (default: all)
set -euo pipefail
cd "$(dirname "$0")/../.."

install() { # file with lines "client version [what it needs]", clients ("": all), what all need
    local client version needs venv
    while read -r client version needs; do
        venv=build/clients/$client
        [ -z "$2" ] || grep -qxF "$client" <<<"$2" || continue
        if [ "$(cat "$venv/version" 2>/dev/null)" != "$version${needs:+ $needs}" ]; then
            echo "clients: installing $client $version into $venv"
            rm -rf "$venv"
            if ! python3 -m venv "$venv"; then
                echo "clients: python3 -m venv does not work here (package python3-venv)" >&2
                exit 1
            fi
            "$venv/bin/pip" install --quiet --disable-pip-version-check "$client==$version" $needs "${@:3}"
            echo "$version${needs:+ $needs}" >"$venv/version"
        fi
    done <"$1"
}

# The folders of vLLM's tests that vllm_tests.py chooses from. pip checks the hash of its source package
# and unpacks it; then it fails, since metadata of this package need PyTorch.
vllm_tests() {
    local folder=$PWD/build/clients/vllm-tests pinned=tests/clients/vllm/source.txt
    local tests=(tool_use entrypoints/{__init__.py,anthropic} \
        entrypoints/openai/{__init__.py,responses,chat_completion/test_include_reasoning.py})
    cmp -s "$pinned" "$folder/source.txt" && return
    echo "clients: fetching vLLM's tests into $folder"
    rm -rf "$folder"
    mkdir -p "$folder/unpacked"
    TMPDIR=$folder/unpacked build/clients/pytest-asyncio/bin/pip download --no-clean --no-deps \
        --no-build-isolation --no-binary vllm --dest "$folder/unpacked" --require-hashes \
        -r "$pinned" &>"$folder/pip.log" || true
    if ! (cd "$folder"/unpacked/*/vllm_*/tests && cp -r --parents "${tests[@]}" "$folder"); then
        cat "$folder/pip.log" >&2
        return 1
    fi
    rm -rf "$folder/unpacked"
    cp "$pinned" "$folder"
}

tests/scripts/venv.sh
export REGLA_BINARY=${REGLA_BINARY:-build/release/regla}
if [ $# -eq 0 ] || [ "$1" = libraries ]; then
    needed=$(tests/.venv/bin/python tests/clients/libraries.py --environments "${@:2}")
    install tests/clients/libraries/versions.txt "$needed" pytest==9.2.0
    ! grep -qx pytest-asyncio <<<"$needed" || vllm_tests
    tests/.venv/bin/python tests/clients/libraries.py "${@:2}"
fi
if [ "${1:-}" != libraries ]; then
    install tests/clients/versions.txt ""
    exec tests/.venv/bin/python tests/clients/record.py "$@"
fi
