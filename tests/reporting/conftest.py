"""Make the makers of test data and the runner of the command line importable."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("halting", "sinks"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))
