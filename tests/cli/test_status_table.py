"""The table of ranks fits the terminal: what is left out on a narrow one is what is needed least."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "sinks"))

from sentinel_batches import status

from grpo_sentinel.cli.rendering import print_snapshot
from grpo_sentinel.views import Snapshot

VALUES = {
    "reward.mean": 0.5, "policy.loss": -0.001234, "policy.kl_k3_nats": 0.01, "policy.entropy_nats": 2.5,
    "gradient.norm_preclip": 123.4, "optimizer.learning_rate": 1e-6, "memory.rss_bytes": 2.0**33,
    "time.step_seconds": 12.5,
}  # fmt: skip


def shown(width: int) -> list[str]:
    out = io.StringIO()
    ranks = {rank: status(rank, values=VALUES, last_step=123456) for rank in (0, 11)}
    console = Console(file=out, width=width, highlight=False, soft_wrap=True)
    print_snapshot(Snapshot(run_id="r", node="n", ranks=ranks), "no daemon", console)
    lines = out.getvalue().splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("rank"))
    return lines[head : head + 3]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_cell_is_cut(width: int) -> None:
    lines = shown(width)
    assert all(len(line.rstrip()) <= width for line in lines)
    assert "…" not in "".join(lines)
    assert "alive" in lines[1]
    assert "123456" in lines[2]


def test_a_wide_terminal_shows_all_and_80_columns_what_matters() -> None:
    wide, narrow = shown(200)[0], shown(80)[0]
    assert {"host", "pid", "lr", "rss"} <= set(wide.split())
    assert {"state", "step", "phase", "reward", "loss", "grad"} <= set(narrow.split())
    assert "host" not in narrow
