#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Looks for tests that pass on an idle machine alone: keeps every core busy, and runs test files again
# and again beside that. Those to begin with read a log or a count of the server's, which other threads
# of it write.
# Usage: [REGLA_BINARY=build/dev/regla] tests/scripts/repeat_beside_load.sh [ROUNDS [FILE...]]
#   ROUNDS: 50. FILE: tests/http/test_*.py, and other arguments of pytest, such as -k; without any, all
#   files that read a log or a count
# Ends with "N of ROUNDS rounds passed". The output of a round that fails stays in build/test-logs/.
set -uo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-50}
files=("${@:2}")
logs=build/test-logs
export REGLA_BINARY=${REGLA_BINARY:-build/dev/regla} PYTHONDONTWRITEBYTECODE=1

if [ ${#files[@]} -eq 0 ]; then
    mapfile -t files < <(grep -lE '(whole_log|wait_logged|wait_metric|tail|metrics?)\(' tests/http/test_*.py)
fi
mkdir -p $logs

load=()
trap '[ ${#load[@]} -eq 0 ] || kill "${load[@]}" 2>/dev/null' EXIT
for _ in $(seq "$(nproc)"); do
    while :; do :; done &
    load+=($!)
done

passed=0
for round in $(seq "$rounds"); do
    began=$SECONDS log=$logs/repeat-$round.log
    if tests/.venv/bin/python -m pytest -q -p no:cacheprovider -n "$(nproc)" --dist loadfile \
        --timeout 300 "${files[@]}" >"$log" 2>&1; then
        passed=$((passed + 1))
        rm "$log"
    else
        grep -aE '^(FAILED|ERROR) |Timeout' "$log" | sort -u | head -n 20
        echo "round $round FAILED (its output: $log)"
    fi
    echo "$passed of $round rounds, this one in $((SECONDS - began)) s"
done
echo "$passed of $rounds rounds passed"
[ "$passed" -eq "$rounds" ]
