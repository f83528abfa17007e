# SPDX-License-Identifier: Apache-2.0
"""A network of one's own, in which there is nothing but loopback: for this process and what it starts."""

import ctypes
import fcntl
import os
import re
import socket
import struct
from pathlib import Path

CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40


def leave():
    """Before any thread is started: each has the network of the one that started it."""
    user, group = os.getuid(), os.getgid()
    flags = CLONE_NEWNET | (0 if user == 0 else CLONE_NEWUSER)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), "no network of one's own: unshare")
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP | IFF_RUNNING))


def interfaces():
    return set(re.findall(r"^\s*(\S+):", Path("/proc/self/net/dev").read_text(), re.M))


def processes():
    """The ids of those that are in this network."""
    here, found = os.stat("/proc/self/ns/net").st_ino, set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.stat(entry / "ns" / "net").st_ino == here:
                found.add(int(entry.name))
        except OSError:  # it has ended
            pass
    return found
