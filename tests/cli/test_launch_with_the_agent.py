"""The whole way with the real agent on two ranks: launch, NaN on rank 1, halt, 83, finite checkpoint."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from run_support import cli

from grpo_sentinel.halting.checkpoints import check_finite
from grpo_sentinel.history import HistoryReader

pytestmark = pytest.mark.torch


def test_a_nan_on_one_rank_halts_both_at_one_step_with_finite_weights(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    config = tmp_path / "sentinel.yaml"
    body = {"http": {"port": 0}, "launch": {"linger_seconds": 1}, "collectors": {"nvml": {"enabled": False}}}
    config.write_text(json.dumps(body))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = Path(__file__).with_name("agent_loop.py")
    done = cli("launch", "--config", config, "--run-id", "real", "--", *torchrun, script, tmp_path / "out", timeout=200)
    assert done.returncode == 83, done.stderr
    kept = [Path(path) for path in re.findall(r"done at step \d+[:,] (\S+)", done.stderr)]
    assert kept, done.stderr
    assert check_finite(kept[0]).finite
    with HistoryReader(tmp_path / "state" / "grpo-sentinel" / "history.sqlite") as reader:
        assert {status.last_step for status in reader.latest("real").ranks.values()} == {int(kept[0].name[11:])}
        culprit = [one for one in reader.findings("real") if one.rule == "nonfinite_updates"]
        assert culprit[0].ranks == (1,)
        assert "2.weight" in culprit[0].subject
