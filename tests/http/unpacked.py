# SPDX-License-Identifier: Apache-2.0
"""Programs of this machine, or of Debian's packages that deploy/deps.sh has unpacked into tests/."""

import os
import shutil
from pathlib import Path

import harness


class Unpacked:
    def __init__(self, name):
        self.folder = harness.ROOT / "tests" / name

    def find(self, program):
        """Its path, or None."""
        unpacked = sorted(self.folder.glob(f"usr/*bin/{program}"))
        found = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin")
        return unpacked[0] if unpacked else found and Path(found)

    def environment(self):
        libraries = [str(path) for path in self.folder.glob("usr/lib/*-linux-gnu")]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


PROXIES = Unpacked(".proxies")
REDIS = Unpacked(".redis")
