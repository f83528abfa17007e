#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Real clients against build/release/regla, each in an environment of its own under build/clients/:
# - libraries that generate text run tests (libraries.py): 2 GB;
# - vllm bench serve, guidellm and aiperf run, and what they send is recorded (record.py): 14 GB.
# Usage: tests/clients/run.sh [libraries [NAME...] | SCENARIO...]      (default: all)
set -euo pipefail
cd "$(dirname "$0")/../.."

install() { # file with lines "client version", what each needs besides
    local client version venv
    while read -r client version; do
        venv=build/clients/$client
        if [ "$(cat "$venv/version" 2>/dev/null)" != "$version" ]; then
            rm -rf "$venv"
            python3 -m venv "$venv"
            "$venv/bin/pip" install --quiet --disable-pip-version-check "$client==$version" "${@:2}"
            echo "$version" >"$venv/version"
        fi
    done <"$1"
}

tests/scripts/venv.sh
export REGLA_BINARY=${REGLA_BINARY:-build/release/regla}
if [ $# -eq 0 ] || [ "$1" = libraries ]; then
    install tests/clients/libraries/versions.txt pytest==9.2.0
    tests/.venv/bin/python tests/clients/libraries.py "${@:2}"
fi
if [ "${1:-}" != libraries ]; then
    install tests/clients/versions.txt
    exec tests/.venv/bin/python tests/clients/record.py "$@"
fi
