# SPDX-License-Identifier: Apache-2.0
"""The models of model-format.md as PyTorch modules."""
