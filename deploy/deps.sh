#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Gets from apt what is missing of what `make serve`, `make cuda` (but for CUDA), `make deb` or `make test` needs;
# proxies: nginx, HAProxy, Caddy and Redis for `make test-all`; page: Chromium for it, where it is a package of Debian;
# arm: a compiler for 64-bit Arm, the libraries for it and qemu, where apt has them.
# Usage: deploy/deps.sh serve|cuda|deb|test|proxies|page|tidy|arm      (Debian 12 and 13, Ubuntu 24.04; asks nothing)
set -euo pipefail
cd "$(dirname "$0")/.."

libraries=(libc6-dev libmicrohttpd-dev libgnutls28-dev libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev
           libsqlite3-dev libhiredis-dev libcairo2-dev)
packages=(gcc make cmake pkg-config "${libraries[@]}" fonts-dejavu-core)
case ${1:-} in
serve) ;;
cuda) packages+=(g++) ;;
deb) packages+=(dpkg-dev file) ;;
test) packages+=(ccache g++ libcriterion-dev clang git python3 python3-venv ca-certificates wrk
                curl openssl) ;;
proxies) packages=(openssl) ;;
page) packages=() ;;
tidy) packages+=(clang-tidy) ;;
arm) packages=(make cmake pkg-config) ;;
*)
    echo "usage: deploy/deps.sh serve|cuda|deb|test|proxies|page|tidy|arm" >&2
    exit 2
    ;;
esac

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

updated=no
refresh() {
    # A list that cannot be fetched is no reason to stop: apt-get says what it lacks.
    [ $updated = yes ] || as_root DEBIAN_FRONTEND=noninteractive apt-get -qq update || true
    updated=yes
}

installed() {
    dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed
}

# Not by a pipe into grep -q: that would end apt-cache, and with it the pipe, in failure.
has_package() {
    [[ $(apt-cache policy "$1") == *'Candidate: '[0-9]* ]]
}

install() {
    local package missing=()
    for package in "$@"; do
        installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "deps: installing ${missing[*]}"
    refresh
    as_root DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y -o Dpkg::Use-Pty=0 install --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
        { tail -n 30 "$log" >&2; echo "deps: apt-get install failed: ${missing[*]}" >&2; exit 1; }
}

# Prometheus for the tests, only unpacked: the package installed would also serve, and at each boot.
unpack_prometheus() {
    local folder=tests/.prometheus
    [ ! -x $folder/usr/bin/prometheus ] || return 0
    echo "deps: unpacking prometheus into $folder"
    rm -rf $folder $folder.new
    unpack prometheus $folder.new
    # Newer distributions have promtool in a package of its own.
    [ -x $folder.new/usr/bin/promtool ] || unpack promtool $folder.new
    mv $folder.new $folder
}

# Redis for the tests, only unpacked, too, with what it needs.
unpack_redis() {
    local folder=tests/.redis package
    [ ! -d $folder ] || return 0
    echo "deps: unpacking redis into $folder"
    rm -rf $folder.new
    refresh
    for package in redis-server redis-tools $(apt-cache depends --recurse --important redis-tools |
        grep -oE '^lib(lua|lzf|jemalloc|atomic)[a-z0-9.-]+' | sort -u); do
        unpack "$package" $folder.new
    done
    mv $folder.new $folder
}

# Proxies for the tests, only unpacked, too, with what they need beside OpenSSL and the like.
unpack_proxies() {
    local folder=tests/.proxies package
    [ ! -d $folder ] || return 0
    echo "deps: unpacking nginx, haproxy and caddy into $folder"
    rm -rf $folder.new
    refresh
    for package in nginx haproxy caddy $(apt-cache depends --recurse --important haproxy |
        grep -oE '^lib(lua|opentracing)[a-z0-9.-]+' | sort -u); do
        unpack "$package" $folder.new
    done
    mv $folder.new $folder
}

# Ubuntu has it as a snap only, which no container can run.
install_browser() {
    ! { installed chromium && installed chromium-driver; } || return 0
    refresh
    if has_package chromium-driver; then
        install chromium chromium-driver
    else
        echo "deps: apt has no chromium-driver here: the page's tests will be skipped"
    fi
}

# The compiler is a package of this machine; the libraries are of another, so they are only unpacked, by an apt
# that looks at a folder of its own.
get_arm() {
    local folder=tests/.arm root=$scratch/arm package
    local options=(-o "Dir::State=$root" -o "Dir::State::status=$root/status" -o "Dir::Cache=$root"
                   -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root)
    [ ! -d $folder ] || ! command -v qemu-aarch64 >/dev/null || ! command -v aarch64-linux-gnu-gcc >/dev/null || return 0
    refresh
    if ! has_package gcc-aarch64-linux-gnu; then
        echo "deps: apt has no gcc-aarch64-linux-gnu here: nothing will be built for Arm"
        return 0
    fi
    install gcc-aarch64-linux-gnu qemu-user
    [ ! -d $folder ] || return 0
    echo "deps: unpacking the libraries of arm64 into $folder"
    mkdir -p "$root/lists/partial" "$root/archives/partial"
    : >"$root/status"
    # Lists that have nothing for arm64 are no reason to stop.
    apt-get -qq "${options[@]}" update >"$log" 2>&1 || true
    if ! apt-get -qq -y "${options[@]}" --no-install-recommends --download-only install \
        "${libraries[@]}" libcriterion-dev >>"$log" 2>&1; then
        tail -n 5 "$log" >&2
        echo "deps: apt has no libraries of arm64 here: nothing will be built for Arm"
        return 0
    fi
    rm -rf $folder.new
    mkdir $folder.new
    for package in "$root"/archives/*.deb; do
        dpkg-deb --extract "$package" $folder.new
    done
    mv $folder.new $folder
}

unpack() { # package, folder
    download "$1" || { refresh; download "$1"; } ||
        { tail -n 30 "$log" >&2; echo "deps: apt-get download failed: $1" >&2; exit 1; }
    dpkg-deb --extract "$scratch/$1"_*.deb "$2"
}

download() {
    (cd "$scratch" && apt-get -qq -o Dpkg::Use-Pty=0 download "$1") >"$log" 2>&1
}

if ! command -v apt-get >/dev/null; then
    echo "deps: no apt-get here; install what is missing of: ${packages[*]}"
    exit 0
fi
scratch=$(mktemp -d)
log=$scratch/log
trap 'rm -rf "$scratch"' EXIT
install "${packages[@]}"
if [ "$1" = test ]; then
    # The sanitizers' and libFuzzer's runtime has the compiler's version in its name.
    install "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
    unpack_prometheus
fi
[ "$1" != test ] && [ "$1" != proxies ] || unpack_redis
[ "$1" != proxies ] || unpack_proxies
[ "$1" != page ] || install_browser
[ "$1" != arm ] || get_arm
