#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Real clients against build/release/regla, each in an environment of its own under build/clients/:
# - libraries that generate text run tests (libraries.py): 2 GB;
# - vllm bench serve, guidellm and aiperf run, and what they send is recorded (record.py): 14 GB.
# Installs what it runs from PyPI, unless it is there; needs python3 with venv (package python3-venv).
# Usage: tests/clients/run.sh [libraries [NAME...] | SCENARIO...]      (default: all)
set -euo pipefail
cd "$(dirname "$0")/../.."

install() { # file with lines "client version", clients ("": all), what each needs besides
    local client version venv
    while read -r client version; do
        venv=build/clients/$client
        [ -z "$2" ] || grep -qxF "$client" <<<"$2" || continue
        if [ "$(cat "$venv/version" 2>/dev/null)" != "$version" ]; then
            echo "clients: installing $client $version into $venv"
            rm -rf "$venv"
            if ! python3 -m venv "$venv"; then
                echo "clients: python3 -m venv does not work here (package python3-venv)" >&2
                exit 1
            fi
            "$venv/bin/pip" install --quiet --disable-pip-version-check "$client==$version" "${@:3}"
            echo "$version" >"$venv/version"
        fi
    done <"$1"
}

tests/scripts/venv.sh
export REGLA_BINARY=${REGLA_BINARY:-build/release/regla}
if [ $# -eq 0 ] || [ "$1" = libraries ]; then
    needed=$(tests/.venv/bin/python tests/clients/libraries.py --environments "${@:2}")
    install tests/clients/libraries/versions.txt "$needed" pytest==9.2.0
    tests/.venv/bin/python tests/clients/libraries.py "${@:2}"
fi
if [ "${1:-}" != libraries ]; then
    install tests/clients/versions.txt ""
    exec tests/.venv/bin/python tests/clients/record.py "$@"
fi
