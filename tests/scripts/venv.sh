#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes FOLDER/.venv with exactly FOLDER/requirements.txt, unless it is there already.
# Usage: tests/scripts/venv.sh [FOLDER]      (default: tests)
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=${1:-tests}
venv=$folder/.venv
wanted=$(cat "$folder/requirements.txt")
while read -r _ file; do # -r FILE
    wanted+=$(cat "$folder/$file")
done < <(grep '^-r ' "$folder/requirements.txt")
if [ "$wanted" = "$(cat "$venv/installed" 2>/dev/null)" ]; then
    exit 0
fi
rm -rf "$venv"
made=no
for python in /usr/bin/python3 python3; do
    if $python -m venv "$venv" >/dev/null 2>&1; then
        made=yes
        break
    fi
    rm -rf "$venv"
done
if [ $made = no ]; then
    echo "venv: python3 -m venv does not work here (package python3-venv)" >&2
    exit 1
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --use-pep517 \
    -r "$folder/requirements.txt"
echo "$wanted" >"$venv/installed"
