# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts that need a machine with nothing on it: a minimal Debian in a folder.

# Makes the system of $SUITE (bookworm) in a folder, unless there is one. The host's resolv.conf,
# certificates and pip.conf are copied in, since a host's network may need them.
make_system() { # folder
    local file
    if [ ! -e "$1/etc/debian_version" ]; then
        debootstrap --variant=minbase "${SUITE:-bookworm}" "$1" >"$1.log" 2>&1 ||
            { tail -n 5 "$1.log" >&2; exit 1; }
    fi
    cp -L /etc/resolv.conf "$1/etc/resolv.conf"
    printf "127.0.0.1 localhost %s\n" "$(hostname)" >"$1/etc/hosts"
    mkdir -p "$1/etc/ssl/certs"
    for file in /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do
        [ ! -e $file ] || cp -L $file "$1$file"
    done
    [ ! -d /usr/local/share/ca-certificates ] || cp -rL /usr/local/share/ca-certificates "$1/usr/local/share/"
}

# Runs a command of bash in the system. Its mounts and processes live in namespaces of their own and
# vanish with it.
in_system() { # folder, command
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb FOLDER="$1" COMMAND="$2" \
        unshare --mount --pid --fork --kill-child bash -c '
        set -e
        mount -t proc proc "$FOLDER/proc"
        mount --rbind /dev "$FOLDER/dev"
        exec chroot "$FOLDER" bash -c "$COMMAND" </dev/null'
}
