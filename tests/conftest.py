"""For every test: directories of its own, and none of the variables that a developer or a launcher may have set."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

_FOREIGN = (
    "GRPO_SENTINEL", "GRPO_SENTINEL_RUN_ID", "GRPO_SENTINEL_PARENT_RUN_ID", "GRPO_SENTINEL_SETTINGS", "DEMO_FAULT",
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "RAY_JOB_ID",
)  # fmt: skip

# without torch (`make test-light`) these cannot even be imported
collect_ignore = [] if importlib.util.find_spec("torch") else ["agent", "capture", "integrations", "probes"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings and state under this test's own directory, for the test and for everything it starts."""
    for name in _FOREIGN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "rings").mkdir()
