#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Proves the Debian packages: builds them, installs regla in a minimal Debian made by debootstrap, and
# looks at what a user has then: a server that answers curl, the manual, completion, the unit.
# Usage (as root): [SUITE=bookworm] tests/scripts/package.sh FOLDER
#   SUITE: bookworm (Debian 12) or trixie (13). A package is for the Debian it was built on: that of
#   another than this machine's is built in a copy of the minimal system, FOLDER-build.
#   FOLDER is made anew unless it holds a system already.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/scripts/system.sh
folder=${1:?a folder for the system}
SUITE=${SUITE:-bookworm}

make_system "$folder"
if [ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" = "$SUITE" ]; then
    make deb
    packages=build/deb
else
    [ -e "$folder-build/etc/debian_version" ] || cp -a "$folder" "$folder-build"
    rm -rf "$folder-build/source.git" "$folder-build/root/regla"
    git clone -q --bare . "$folder-build/source.git"
    in_system "$folder-build" "set -e
        apt-get -qq update
        apt-get -qq -y install --no-install-recommends make git >/dev/null 2>&1
        cd /root && git clone -q /source.git regla && cd regla && make deb"
    packages=$folder-build/root/regla/build/deb
fi
if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error "$packages"/*.deb && echo "lintian: no errors"
else
    echo "lintian: not here, skipped"
fi
rm -rf "$folder/root/packages" "$folder/srv/models"
mkdir -p "$folder/root/packages" "$folder/srv/models"
cp "$packages"/*.deb "$folder/root/packages/"
cp -r models/regla-books-7.7m "$folder/srv/models/"

cat >"$folder/root/proof.sh" <<'PROOF'
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
say() { echo "== $*"; }
fail() { echo "package.sh: $*" >&2; exit 1; }
apt-get -qq update
apt-get -qq -y purge regla regla-plot >/dev/null 2>&1 || true
apt-get -qq -y install --no-install-recommends curl man-db systemd >/dev/null 2>&1
apt-get -qq -y install --no-install-recommends /root/packages/regla_*.deb >/root/install.log 2>&1 ||
    { tail /root/install.log; fail "the package does not install"; }
say "installed: $(dpkg-query -W -f '${Package} ${Version}, depends on ${Depends}' regla)"

say "ldd: $(ldd /usr/bin/regla | wc -l) lines"
! ldd /usr/bin/regla | grep -E 'not found|libX11|cairo|freetype' || fail "ldd of regla"
# Those it names are libmicrohttpd, jansson, pcre2, utf8proc, sqlite3 and C's two; nine come with
# libmicrohttpd's TLS; ldd lists the loader and the vDSO too: 18 in all on Debian 12.
[ "$(ldd /usr/bin/regla | wc -l)" -le 18 ] || fail "regla loads more libraries than it should"

say "regla serve, as a user without rights, with the settings of /etc/default/regla"
cp /etc/default/regla /root/default
sed -i 's|^#REGLA_MODEL=.*|REGLA_MODEL=/srv/models/regla-books-7.7m|; s|^#REGLA_PORT=.*|REGLA_PORT=0|' /etc/default/regla
(set -a; . /etc/default/regla; exec setpriv --reuid 65534 --regid 65534 --clear-groups regla serve) >/root/serve.log 2>&1 &
serve=$!
trap 'kill $serve 2>/dev/null || true' EXIT
for _ in $(seq 600); do
    url=$(grep -o 'http://[0-9.:]*' /root/serve.log | head -n 1 || true)
    [ -n "$url" ] && curl -sf "$url/ready" >/dev/null && break
    kill -0 $serve 2>/dev/null || { cat /root/serve.log; fail "the server has ended"; }
    sleep 0.1
done
curl -sf "$url/v1/completions" -H 'Content-Type: application/json' \
    -d '{"prompt": "It was a dark night, and", "max_tokens": 16, "temperature": 0}' | tee /root/reply
echo
grep -q '"finish_reason":"length"' /root/reply || fail "no completion"
kill $serve
wait $serve || fail "regla serve ended with status $?"
trap - EXIT
say "SIGTERM: ended with status 0"
cp /root/default /etc/default/regla

man -P cat regla >/root/manual 2>/root/manual.err || fail "man regla: $(cat /root/manual.err)"
grep -q -e '--max-queue' /root/manual && grep -q REGLA_MAX_QUEUE /root/manual || fail "the manual lacks --max-queue"
say "man regla: $(wc -l </root/manual) lines"

. /usr/share/bash-completion/completions/regla
completed() { # words
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    "$(complete -p regla | grep -o '_[a-z_]*')"
    echo "regla ${*:2} [tab]: ${COMPREPLY[*]}"
}
completed regla ser | grep -q ': serve$' || fail "completion of commands"
completed regla serve --max-q | grep -q 'max-queue .*max-queue-tokens\|max-queue-tokens' || fail "completion of flags"
completed regla serve --device c | tee /root/completed
grep -q ': cpu cuda$' /root/completed || fail "completion of values"
completed regla serve --model /srv/mod | grep -q ': /srv/models$' || fail "completion of folders"

systemd-analyze verify /usr/lib/systemd/system/regla.service >/root/verify 2>&1 || { cat /root/verify; fail "systemd-analyze verify"; }
[ ! -s /root/verify ] || { cat /root/verify; fail "systemd-analyze verify says something"; }
say "systemd-analyze verify: clean"
systemd-analyze security --offline=true /usr/lib/systemd/system/regla.service | tail -n 1 || true

apt-get -qq -y install --no-install-recommends /root/packages/regla-plot_*.deb >/root/install.log 2>&1 ||
    { tail /root/install.log; fail "regla-plot does not install"; }
regla study --systems regla --lengths 2,4 --repeat 1 --quiet --out /root/study >/root/study.log || { cat /root/study.log; fail "regla study"; }
[ -s /root/study/time-b1.svg ] || fail "no plot"
say "regla study with regla-plot: $(cd /root/study && echo *.svg)"
rm -rf /root/study

apt-get -qq -y purge regla regla-plot >/dev/null 2>&1
left=$(find / -xdev \( -path /root -o -path /proc -o -path /dev -o -path /srv -o -path /var/cache \) -prune -o -name '*regla*' -print)
[ -z "$left" ] || fail "purged, the package leaves $left"
say "purged: nothing is left"
echo "package: 1 passed, 0 failed"
PROOF
in_system "$folder" "bash /root/proof.sh"
