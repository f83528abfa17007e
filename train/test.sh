#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests of train/: the golden cases in float64, chunks against the recurrence, a small training run.
set -euo pipefail
cd "$(dirname "$0")/.."
train/venv.sh
exec .venv-train/bin/python -m pytest -q train/tests "$@"
