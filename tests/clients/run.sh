#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs vllm bench serve, guidellm and aiperf against build/release/regla and records what they send
# (record.py). Needs about 14 GB of disk under build/clients for them and their PyTorch.
# Usage: tests/clients/run.sh [scenario...]
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/scripts/venv.sh
while read -r client version; do
    venv=build/clients/$client
    if [ "$(cat "$venv/version" 2>/dev/null)" != "$version" ]; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check "$client==$version"
        echo "$version" >"$venv/version"
    fi
done <tests/clients/versions.txt
export REGLA_BINARY=${REGLA_BINARY:-build/release/regla}
exec tests/.venv/bin/python tests/clients/record.py "$@"
