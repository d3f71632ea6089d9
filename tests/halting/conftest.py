"""Make the helpers beside this file importable, and end by pid whatever a test started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from run_support import Started


@pytest.fixture
def started() -> Iterator[Started]:
    with Started() as processes:
        yield processes
