"""The numbers behind the heat map of ranks."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
from sentinel_batches import RUN, batch, record, status

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.history import HistoryReader, HistoryStore, Series
from grpo_sentinel.views import Snapshot
from grpo_sentinel.web.heat import LIMIT, by_signal, by_step, deviations


def test_a_deviation_is_the_distance_from_the_median_in_robust_standard_deviations() -> None:
    # median 10, absolute deviations 0 1 2 3 30: MAD 2, scale 1.4826 x 2
    got = deviations([10.0, 11.0, 12.0, 7.0, -20.0])
    assert got == pytest.approx([0, 1 / 2.9652, 2 / 2.9652, -3 / 2.9652, -30 / 2.9652], abs=0.005)


def test_ranks_that_differ_by_next_to_nothing_are_alike_unless_replicas_must_agree() -> None:
    column = [1.0, 1.0, 1.0, 1.001]
    assert max(map(abs, deviations(column))) < 0.1
    assert deviations(column, same=True) == [0.0, 0.0, 0.0, LIMIT]


def test_what_is_not_finite_is_far_off_and_what_is_missing_stays_missing() -> None:
    assert deviations([1.0, math.nan, 1.0, math.inf, None]) == [0.0, LIMIT, 0.0, LIMIT, None]
    assert deviations([math.nan, math.nan, None]) == [0.0, 0.0, None]
    assert deviations([0.0, 0.0, 0.0, 2.0]) == [0.0, 0.0, 0.0, LIMIT]
    assert deviations([0.0, 0.0, 1e308, -1e308, 1.0])[2:4] == [LIMIT, -LIMIT]


def test_signals_that_part_the_ranks_are_kept_and_stand_in_order_of_layer() -> None:
    odd = {rank: {f"reward.func_mean[{i}]": 1.0 for i in range(40)} for rank in range(4)}
    odd[2]["time.step_seconds"] = 9.0
    for rank in (0, 1, 3):
        odd[rank]["time.step_seconds"] = 1.0
    odd[0]["sentinel.agent_share"] = 5.0
    heat = by_signal(odd, most=10)
    assert len(heat.columns) == 10
    assert heat.columns[-1] == "time.step_seconds"
    assert heat.deviations[2][-1] == LIMIT
    assert "10 of 41 signals" in heat.note


def test_two_ranks_have_no_odd_one() -> None:
    heat = by_signal({0: {"policy.loss": 1.0}, 1: {"policy.loss": 9.0}})
    assert (heat.columns, heat.deviations) == ((), ())
    assert "3 or more" in heat.note


def line(rank: int, values: list[float]) -> Series:
    finite = tuple(value if math.isfinite(value) else math.nan for value in values)
    bad = tuple(int(not math.isfinite(value)) for value in values)
    return Series(
        signal="time.step_seconds", rank=rank, steps=tuple(range(1, len(values) + 1)), low=finite, high=finite,
        nonfinite=bad,
    )  # fmt: skip


def test_over_steps_a_spike_of_one_step_survives_the_grouping_with_its_own_value() -> None:
    lines = {rank: line(rank, [1.0] * 100) for rank in range(4)}
    lines[3] = line(3, [1.0] * 50 + [7.0] + [1.0] * 49)
    heat = by_step(lines, 10)
    assert heat.columns == tuple(range(1, 101, 10))
    assert (heat.values[3][5], heat.deviations[3][5]) == (7.0, LIMIT)
    assert heat.deviations[3][4] == heat.deviations[0][5] == 0.0


def test_over_steps_a_dip_is_shown_with_the_value_that_is_off() -> None:
    lines = {rank: line(rank, [1.0, 1.0, 1.0, 1.0]) for rank in range(4)}
    lines[1] = line(1, [1.0, 0.1, 1.0, 1.0])
    heat = by_step(lines, 2)
    assert heat.values[1] == [0.1, 1.0]
    assert heat.deviations[1][0] < -10


def test_one_rank_alone_is_compared_with_its_own_past() -> None:
    heat = by_step({0: line(0, [1.0] * 9 + [5.0])}, 10)
    assert heat.deviations[0] == [0.0] * 9 + [80.0]
    assert heat.reference == "the median of these steps"


def test_a_group_with_a_nan_is_not_finite_and_no_steps_give_an_empty_map() -> None:
    lines = {rank: line(rank, [1.0, 1.0, 1.0, math.nan if rank == 1 else 1.0]) for rank in range(3)}
    heat = by_step(lines, 2)
    assert math.isnan(heat.values[1][1])
    assert heat.deviations[1][1] == LIMIT
    assert by_step({0: Series(signal="policy.loss", rank=0)}, 10).columns == ()


def test_the_map_of_many_ranks_shows_the_whole_of_a_long_run_in_groups_of_more_steps(tmp_path, monkeypatch) -> None:
    from grpo_sentinel.history import rollup, series
    from grpo_sentinel.web import explore
    from grpo_sentinel.web.past import Past
    from grpo_sentinel.web.state import WebState

    for module, name, value in ((rollup, "BUCKET_STEPS", 4), (series, "BUCKET_STEPS", 4), (rollup, "FAN_IN", 2)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(explore, "MOST_ROWS", 64)
    file = tmp_path / "history.sqlite"
    store = HistoryStore(file, clock=ManualClock())
    for rank in range(4):
        store.write(batch(*(record(step, rank, {"policy.loss": 1.0 + rank}) for step in range(1, 1001))))
    for _ in range(20):
        store.flush()
    store.close()
    snapshot = Snapshot(run_id=RUN, ranks={rank: status(rank, last_step=1000) for rank in range(4)})
    state = WebState(
        snapshots=lambda: {RUN: snapshot}, problems=list, act=lambda *_: 0, act_token="x",
        history=lambda: HistoryReader(file),
    )  # fmt: skip

    def asked(**query: str) -> dict:
        request = SimpleNamespace(query_params={"by": "step", "signal": "policy.loss", "columns": "24", **query})
        return json.loads(explore.Explore(state, Past(state)).heat(request).body)

    heat = asked()
    assert heat["columns"] == list(range(0, 1000, 64)), "of the whole run, though nobody may read all of it closer"
    assert heat["note"] == ""
    assert [row[3] for row in heat["values"]] == [1.0, 2.0, 3.0, 4.0]
    assert asked(since="96", until="200")["columns"] == list(range(96, 201, 8))
