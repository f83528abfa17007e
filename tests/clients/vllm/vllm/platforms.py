# SPDX-License-Identifier: Apache-2.0
"""What vLLM's tests ask of the machine."""


class current_platform:
    @staticmethod
    def is_rocm():
        return False
