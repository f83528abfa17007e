# SPDX-License-Identifier: Apache-2.0
"""A server whose disk or memory fails when a test says so (shim.c, preloaded)."""

import contextlib
import mmap
import struct
import subprocess
from pathlib import Path

OPS = {"write": 1, "fsync": 2, "rename": 4, "open": 8, "unlink": 16, "short": 32, "malloc": 64}
ENOMEM, EIO, ENOSPC = 12, 5, 28


class Faults:
    """What the preloaded library is to do; `environment` is for the server that loads it."""

    def __init__(self, folder):
        library, control = Path(folder) / "shim.so", Path(folder) / "control"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library,
                        Path(__file__).with_name("shim.c"), "-ldl"], check=True)
        control.write_bytes(bytes(4096))
        with open(control, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 4096)
        self.environment = {"LD_PRELOAD": str(library), "FAULT_CTL": str(control)}

    def set(self, ops, every=1, error=EIO):
        """Every n-th of these calls fails; `ops` "write|fsync"."""
        self.off()
        self.memory[16:32] = bytes(16)
        bits = sum(OPS[name] for name in ops.split("|"))
        self.memory[0:12] = struct.pack("<iii", bits, every, error)

    def off(self):
        self.memory[0:12] = bytes(12)

    def slow(self, seconds):
        """A sync takes so much longer."""
        self.memory[32:40] = struct.pack("<q", int(seconds * 1e6))

    def syncs(self):
        """How many are under way, or were when the server was killed."""
        return struct.unpack("<q", self.memory[40:48])[0]

    def forget_syncs(self):
        self.memory[40:48] = bytes(8)

    def calls(self):
        """Calls that might have failed since `set`."""
        return struct.unpack("<q", self.memory[16:24])[0]

    def fired(self):
        """Calls that have failed since `set`."""
        return struct.unpack("<q", self.memory[24:32])[0]

    @contextlib.contextmanager
    def during(self, ops, every=1, error=EIO):
        """They fail meanwhile, and some do: else the test has shown nothing."""
        self.set(ops, every, error)
        yield
        self.off()
        assert self.fired() > 0, f"no call of {ops} has failed"
