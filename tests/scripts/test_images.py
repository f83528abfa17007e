# SPDX-License-Identifier: Apache-2.0
"""The images of deploy/, built and started without a container engine (images.py); in make test-stress."""

import images
import pytest


@pytest.mark.parametrize("dockerfile", images.DOCKERFILES, ids=lambda path: path.name)
def test_image(dockerfile):
    if lacks := images.lacking(dockerfile):
        pytest.skip(f"{dockerfile.name}: {lacks}")
    print()
    images.prove(dockerfile, images.ROOT / "build/images")
