"""`top` indents what follows from a cause as `status` does, also where the cause itself is over."""

from __future__ import annotations

from dataclasses import replace

from run_support import finding

from grpo_sentinel.cli.rendering import _findings
from grpo_sentinel.cli.top.screen import screen
from grpo_sentinel.cli.top.state import State, View
from grpo_sentinel.cli.top.trend import Trends
from grpo_sentinel.views import Snapshot


def test_findings_of_a_cause_that_is_over_stand_under_the_first_of_them() -> None:
    first = finding("loss_nonfinite", onset=5, root_id="reward_nonfinite:0:4")
    second = finding("gradient_nonfinite", onset=6, root_id="reward_nonfinite:0:4")
    alone = replace(finding("kl_blow_up", onset=9), layer="policy")
    snapshot = Snapshot(findings=(first, second, alone))
    lines = [line.plain for line in screen(snapshot, "", State(view=View.FINDINGS), Trends(), 100, 24)]
    shown = [line for line in lines if " is bad" in line][1:]  # the first is the verdict above the view
    assert [line.startswith("  └ ") for line in shown] == [False, True, False]
    assert ["└" in line.plain for line in _findings(snapshot) if " is bad" in line.plain] == [
        False,
        True,
        False,
    ]
