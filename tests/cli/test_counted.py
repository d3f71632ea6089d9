"""One is not many."""

from __future__ import annotations

from grpo_sentinel.cli.top.screen import screen
from grpo_sentinel.cli.top.state import State
from grpo_sentinel.cli.top.trend import Trends
from grpo_sentinel.views import Snapshot
from grpo_sentinel.wording import counted


def test_a_count_agrees_with_its_noun() -> None:
    assert [counted(count, "rank") for count in (0, 1, 2, 1024)] == ["0 ranks", "1 rank", "2 ranks", "1,024 ranks"]
    assert "0 ranks" in screen(Snapshot(), "", State(), Trends(), 80, 24)[0].plain
