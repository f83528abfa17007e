#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Proves both commands of the README on a machine that has nothing: a minimal Debian made by
# debootstrap, a new user with sudo, a clean clone of HEAD, `make serve` answering curl, `make test`.
# Usage (as root): [SUITE=bookworm] tests/scripts/fresh_machine.sh FOLDER [command...]
#   SUITE: bookworm (Debian 12) or trixie (13); another system, such as Ubuntu, is put in FOLDER before.
#   FOLDER is made anew unless it holds a system already; then only the user's clone is made anew.
#   command: what the user types in the clone instead of the whole proof, e.g. "make deps"
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/scripts/system.sh
folder=${1:?a folder for the system}
shift

make_system "$folder"
rm -rf "$folder/source.git" "$folder/home/me/regla"
git clone -q --bare . "$folder/source.git"

cat >"$folder/root/prepare.sh" <<'PREPARE'
set -euo pipefail
if ! id me >/dev/null 2>&1; then
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends \
        sudo git make curl >/dev/null 2>&1
    useradd --create-home --shell /bin/bash me
    echo 'me ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/me
fi
PREPARE

cat >"$folder/root/proof.sh" <<'PROOF'
set -euo pipefail
cd ~/regla
SECONDS=0
make serve >~/serve.log 2>&1 &
serve=$!
trap 'kill $serve 2>/dev/null || true' EXIT
for _ in $(seq 1800); do
    if curl -sf http://127.0.0.1:8000/ready >/dev/null; then ready=yes; break; fi
    kill -0 $serve 2>/dev/null || break
    sleep 1
done
if [ "${ready:-no}" = no ]; then tail -n 30 ~/serve.log; echo "make serve: not ready"; exit 1; fi
echo "make serve: ready after $SECONDS s"
tail -n 25 ~/serve.log
curl -s http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \
    -d '{"prompt": "It was a dark night, and", "max_tokens": 48, "temperature": 0}'
echo
kill "$(cat /proc/$serve/task/$serve/children)" # the server itself; make says how it ended
wait $serve && echo "make serve: exit 0" || { echo "make serve: exit $?"; exit 1; }
trap - EXIT
SECONDS=0
make test >~/test.log 2>&1 && status=0 || status=$?
tail -n 40 ~/test.log
echo "make test: exit $status after $SECONDS s"
exit $status
PROOF
chmod a+rx "$folder/root" "$folder"/root/*.sh

if [ $# -gt 0 ]; then
    printf 'set -euo pipefail\ncd ~/regla\n%s\n' "$*" >"$folder/root/command.sh"
else
    cp "$folder/root/proof.sh" "$folder/root/command.sh"
fi
chmod a+rx "$folder/root/command.sh"

in_system "$folder" 'set -e
    bash /root/prepare.sh
    chown -R me: /source.git
    su - me -c "git clone -q /source.git regla && bash /root/command.sh"'
