#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes .venv-train with exactly train/requirements.txt, unless it is there already.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-train
if cmp -s train/requirements.txt $venv/installed; then
    exit 0
fi
rm -rf $venv
if ! /usr/bin/python3 -m venv $venv >/dev/null 2>&1; then
    rm -rf $venv
    if [ "$(id -u)" = 0 ]; then sudo=; else sudo=sudo; fi
    $sudo apt-get install -y -qq python3-venv g++
    /usr/bin/python3 -m venv $venv
fi
$venv/bin/python -m pip install --quiet --disable-pip-version-check -r train/requirements.txt
cp train/requirements.txt $venv/installed
