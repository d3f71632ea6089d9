"""Make the demo's modules importable; build its assets once for all tests that train."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo"
sys.path.insert(0, str(DEMO))


@pytest.fixture(scope="session")
def demo_assets() -> Path:
    """The demo's assets, where `make demo` has them too: built at most once."""
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, str(DEMO / "assets.py")], check=True, timeout=280, env=environ)
    return ROOT / "build" / "demo-assets"
