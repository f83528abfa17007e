#!/bin/bash
# Installs from apt what is missing of what `make serve` or `make test` needs.
# Usage: deploy/deps.sh serve|test      (Debian 12, Ubuntu 24.04; asks nothing)
set -euo pipefail

packages=(gcc libc6-dev make cmake pkg-config
          libmicrohttpd-dev libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev
          libcairo2-dev fonts-dejavu-core)
if [ "${1:?serve or test}" = test ]; then
    packages+=(g++ libcriterion-dev clang git python3 python3-venv ca-certificates)
fi

as_root() {
    if [ "$(id -u)" = 0 ]; then
        env "$@"
    elif command -v sudo >/dev/null; then
        sudo env "$@"
    else
        echo "deps: neither root nor sudo; as root, please: $*" >&2
        exit 1
    fi
}

installed() {
    dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed
}

updated=no
install() {
    local package missing=()
    for package in "$@"; do
        installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "deps: installing ${missing[*]}"
    if [ $updated = no ]; then
        # A list that cannot be fetched is no reason to stop: apt-get install says what it lacks.
        as_root DEBIAN_FRONTEND=noninteractive apt-get -qq update || true
        updated=yes
    fi
    as_root DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y -o Dpkg::Use-Pty=0 install --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
        { tail -n 30 "$log" >&2; echo "deps: apt-get install failed: ${missing[*]}" >&2; exit 1; }
}

if ! command -v apt-get >/dev/null; then
    echo "deps: no apt-get here; install what is missing of: ${packages[*]}"
    exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install "${packages[@]}"
if [ "$1" = test ]; then
    # The sanitizers' and libFuzzer's runtime has the compiler's version in its name.
    install "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
fi
