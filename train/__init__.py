# SPDX-License-Identifier: Apache-2.0
"""Training of regla's models in PyTorch: the definitions of model-format.md, and what makes
models/."""

import time

STARTED = time.monotonic()  # of a program, before it has loaded PyTorch
