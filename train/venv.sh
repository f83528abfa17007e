#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes .venv-train with exactly train/requirements.txt, unless it is there already. Where the system has a
# PyTorch that is new enough (Debian's python3-torch), the venv takes it with its numpy, and the rest is downloaded.
#   SYSTEM_TORCH=no   downloads PyTorch all the same
#   PYTHON            to make the venv of (/usr/bin/python3)
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-train python=${PYTHON:-/usr/bin/python3}
least=2.6 # the first with torch.nn.utils.get_total_norm

say() { echo "venv: $*"; }

# The version of the system's PyTorch by its files, without the seconds that loading it takes; or nothing.
system_torch() {
    [ "${SYSTEM_TORCH:-yes}" = no ] ||
        $python -Ic 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null || true
}

# Measured of requirements.txt's versions; another PyTorch has another size.
download() {
    case $(uname -m) in
    x86_64) echo "2.8 GiB, with CUDA's libraries, and 5.5 GiB on disk" ;;
    *) echo "a size that nobody has measured here" ;;
    esac
}

no_older() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

whole=$(cat train/requirements.txt)
wanted=$whole rest=$whole
torch=$(system_torch)
if [ -n "$torch" ] && no_older "$torch" "$least"; then
    rest="$(grep -Ev '^(torch|numpy)==' train/requirements.txt)
setuptools==84.2.1" # which torch.compile of that PyTorch imports
    wanted="$rest
# with the system's PyTorch $torch"
fi
installed=$(cat $venv/installed 2>/dev/null || true)
if [ -n "$installed" ] && { [ "$installed" = "$wanted" ] || [ "$installed" = "$whole" ]; }; then
    exit 0
fi

# All but the first are for torch.compile.
missing=()
rm -rf $venv
$python -m venv $venv >/dev/null 2>&1 || missing+=(python3-venv)
command -v g++ >/dev/null || missing+=(g++)
[ -e "$($python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] || missing+=(python3-dev)
if [ "$wanted" != "$whole" ] && dpkg-query -W python3-torch >/dev/null 2>&1 &&
    [ ! -e /usr/include/ATen/NumericUtils.h ]; then
    missing+=(libtorch-dev) # the headers that compiled code includes
fi
if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        say "no apt-get here; install what is like Debian's ${missing[*]}" >&2
        exit 1
    fi
    if [ "$(id -u)" = 0 ]; then sudo=; else sudo=sudo; fi
    say "apt-get install ${missing[*]}"
    $sudo apt-get -qq update || true # apt-get install says what it lacks
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "${missing[@]}" >/dev/null
fi

rm -rf $venv
if [ "$wanted" != "$whole" ]; then
    say "takes the system's PyTorch $torch; downloads the rest, about 12 MiB"
    $python -m venv --system-site-packages $venv
else
    [ -z "$torch" ] || say "the system's PyTorch is $torch, older than $least"
    say "downloads PyTorch and what it needs: $(download)"
    $python -m venv $venv
fi
[ -t 1 ] || quiet=--quiet # else pip shows how far it is
$venv/bin/python -m pip install ${quiet:-} --disable-pip-version-check -r <(echo "$rest")
if [ "$wanted" != "$whole" ] &&
    ! $venv/bin/python -c 'import torch; torch.nn.utils.get_total_norm([torch.ones(2)]).numpy()'; then
    say "the system's PyTorch $torch does not work here"
    SYSTEM_TORCH=no exec "$0"
fi
echo "$wanted" >$venv/installed
say "$venv is ready, $(du -sh $venv | cut -f 1) on disk"
