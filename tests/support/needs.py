"""What a test cannot do without."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def is_missing(reason: str) -> NoReturn:
    """Skip the test and say why; where everything has to be there, as in CI, fail it."""
    if os.environ.get("LOWTIDE_REQUIRE_DATA"):
        pytest.fail(reason)
    pytest.skip(reason)
