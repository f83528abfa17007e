# SPDX-License-Identifier: Apache-2.0
"""The presets as models/presets/make_presets.py defines them, at any depth."""

import importlib.util
from functools import cache
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "models" / "presets" / "make_presets.py"


@cache
def presets():
    """The script as a module: SYSTEMS, SIZES, native(system, layers)."""
    spec = importlib.util.spec_from_file_location("make_presets", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
