"""/metrics is what Prometheus takes, says what is not finite, and forgets who is silent."""

from __future__ import annotations

import math
import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from sentinel_batches import RUN, WALL_NS, batch, finding, record, sample, status

from grpo_sentinel.catalog import SIGNALS
from grpo_sentinel.clock import ManualClock
from grpo_sentinel.config import PrometheusConfig
from grpo_sentinel.records import Action, HaltState, Liveness
from grpo_sentinel.sinks import MetricsRenderer
from grpo_sentinel.sinks.exposition import FAMILIES
from grpo_sentinel.views import HaltStatus, Snapshot

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
RANK = {"run_id": RUN, "node": "node-a", "rank": "0", "role": "trainer"}


def run(ranks=None, **changes) -> Snapshot:
    return Snapshot(**{"run_id": RUN, "node": "node-a", "wall_ns": WALL_NS, "ranks": ranks or {0: status()}, **changes})


def full() -> Snapshot:
    """Every signal of the catalogue, every kind of row, and values of every sort."""
    values = {}
    for index, signal in enumerate(s for s in SIGNALS.values() if s.layer != "device"):
        name = f"{signal.name}[{signal.dimension}-1]" if signal.dimension else signal.name
        values[name] = (float(index), math.nan, math.inf, -math.inf)[index % 4]
    values |= {
        "mine.own thing": 1.0,
        'reward.func_mean[say "hi"\n\\]': 2.0,
        "x[\ud800]": 3.0,
        "reward.func_mean[]": 4.0,
    }
    devices = {s.name + ("[7]" if s.dimension else ""): 1.0 for s in SIGNALS.values() if s.layer == "device"}
    return run(
        {0: status(0, values=values), 1: status(1, liveness=Liveness.DEAD)},
        samples={
            "GPU-1": sample(values=devices, unsupported=("device.gpu_ecc_corrected",), failed={"device.gpu_lost": "x"})
        },
        findings=(finding(), finding("drift", ranks=(), root_id="nan_gradient:1:12")),
        halt=HaltStatus(request_id=3, state=HaltState.DONE, action=Action.CHECKPOINT_AND_HALT, step=14),
        health={"loop_seconds_p99": 0.1, "sink_dropped_total[sink=history,reason=queue_full]": 2.0, "rss_bytes": 1e7},
        notes=("the run of node-b has ended", "history is off"),
        problems=("history is off",),
        abstaining={"kl": "no kl"},
    )


def rendered(snapshot: Snapshot | None = None, accept: str = "", renderer: MetricsRenderer | None = None) -> str:
    renderer = renderer or MetricsRenderer(clock=ManualClock(wall_ns=WALL_NS))
    body, content_type = renderer.render(accept, [snapshot or full()])
    assert ("openmetrics" in content_type) == bool(accept)
    return body.decode()


def series(text: str, openmetrics: bool = False) -> dict[tuple[str, frozenset], float]:
    out = {}
    for family in (parse_openmetrics if openmetrics else parse_text)(text):
        for one in family.samples:
            key = (one.name, frozenset(one.labels.items()))
            assert key not in out, f"stands twice: {key}"
            out[key] = one.value
    return out


def value(text: str, name: str, **labels: str) -> float:
    return series(text)["grpo_sentinel_" + name, frozenset(labels.items())]


def test_the_signals_of_a_rank_carry_run_node_rank_and_role():
    snapshot = run(
        {0: status(values={"policy.loss": 0.25, "optimizer.skipped_updates": 3.0, "reward.func_mean[accuracy]": 0.5})}
    )
    text = rendered(snapshot)
    assert value(text, "policy_loss", **RANK) == 0.25
    assert value(text, "optimizer_skipped_updates_total", **RANK) == 3
    assert value(text, "reward_func_mean", **RANK, func="accuracy") == 0.5


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_both_formats_parse_whole_and_hold_no_series_twice(accept):
    found = series(rendered(accept=accept), bool(accept))
    names = {name for name, _ in found}
    for signal in SIGNALS.values():
        sample_name = FAMILIES[signal.name].sample_name
        index = (
            [s.name for s in SIGNALS.values() if s.layer != "device"].index(signal.name)
            if signal.layer != "device"
            else 0
        )
        if signal.kind != "counter" or index % 4 == 0:
            assert sample_name in names


def test_both_formats_hold_the_same_series():
    assert series(rendered()).keys() == series(rendered(accept=OPENMETRICS), True).keys()


def test_names_of_metrics_are_distinct_and_in_base_units():
    names = [family.sample_name for family in FAMILIES.values()]
    assert len(set(names)) == len(names)
    for signal in SIGNALS.values():
        if signal.unit in ("seconds", "bytes", "celsius", "watts", "joules", "hertz", "ratio"):
            assert signal.unit in FAMILIES[signal.name].name or signal.unit == "ratio", signal.name


def test_label_values_from_the_trainer_are_escaped_and_come_back():
    snapshot = run({0: status(values={'reward.func_mean[say "hi"\n\\]': 2.0})})
    assert value(rendered(snapshot), "reward_func_mean", **RANK, func='say "hi"\n\\') == 2.0


def test_a_signal_the_catalogue_does_not_know_is_shown_under_its_own_name():
    assert value(rendered(), "user_signal", **RANK, signal="mine.own thing") == 1.0


def test_values_that_are_not_finite_are_nan_or_inf_and_flagged_beside():
    text = rendered(run({0: status(values={"policy.loss": math.nan, "reward.max": math.inf, "reward.min": 0.0})}))
    assert math.isnan(value(text, "policy_loss", **RANK))
    assert value(text, "reward_max", **RANK) == math.inf
    flags = {dict(labels)["signal"] for name, labels in series(text) if name == "grpo_sentinel_nonfinite"}
    assert flags == {"policy.loss", "reward.max"}


def test_non_finite_values_between_two_scrapes_are_counted():
    renderer = MetricsRenderer(clock=ManualClock(wall_ns=WALL_NS))
    for step in range(3):
        renderer.write(batch(record(step, values={"policy.loss": math.nan})))
    renderer.write(batch(record(4, values={"policy.loss": 1.0})))
    body, _ = renderer.render()
    assert value(body.decode(), "nonfinite_values_total", **RANK, signal="policy.loss") == 3


def test_a_silent_rank_loses_its_series_but_not_its_time_stamp():
    clock = ManualClock(wall_ns=WALL_NS)
    renderer = MetricsRenderer(PrometheusConfig(stale_seconds=60), clock)
    snapshot = run({0: status(), 1: status(1, updated_wall_ns=WALL_NS + 100 * 10**9)}, samples={"GPU-1": sample()})
    clock.advance(61)
    text = rendered(snapshot, renderer=renderer)
    losses = [dict(labels)["rank"] for name, labels in series(text) if name == "grpo_sentinel_policy_loss"]
    assert losses == ["1"]
    assert not any(name == "grpo_sentinel_device_gpu_utilization_ratio" for name, _ in series(text))
    assert value(text, "rank_last_update_timestamp_seconds", **RANK) == WALL_NS / 1e9
    assert (
        value(text, "device_last_update_timestamp_seconds", node="node-a", source="nvml", entity="GPU-1")
        == WALL_NS / 1e9
    )


def test_a_gpu_carries_its_uuid_and_stands_once_for_two_runs_on_the_node():
    renderer = MetricsRenderer(clock=ManualClock(wall_ns=WALL_NS))
    runs = [run(samples={"GPU-1": sample()}), run(run_id="other", samples={"GPU-1": sample()})]
    text = renderer.render("", runs)[0].decode()
    assert value(text, "device_gpu_utilization_ratio", node="node-a", gpu="0", uuid="GPU-1") == 0.5


def test_findings_stand_by_rule_layer_severity_and_rank():
    text = rendered()
    common = {"run_id": RUN, "node": "node-a", "layer": "gradient", "severity": "critical"}
    assert value(text, "findings", **common, rule="nan_gradient", rank="1", root="true") == 1
    assert value(text, "findings", **common, rule="drift", rank="", root="false") == 1
    assert value(text, "finding_onset_step", **common, rule="nan_gradient", rank="1", root="true") == 12


def test_halt_ranks_health_and_build_are_shown():
    text = rendered()
    where = {"run_id": RUN, "node": "node-a"}
    assert value(text, "halt_state", **where, state="done") == 1
    assert value(text, "halt_state", **where, state="none") == 0
    assert value(text, "halt_step", **where) == 14
    assert value(text, "rank_state", **where, rank="1", role="trainer", state="dead") == 1
    assert value(text, "rank_phase", **RANK, phase="forward") == 1
    assert value(text, "daemon_sink_dropped_total", node="node-a", sink="history", reason="queue_full") == 2
    assert value(text, "daemon_rss_bytes", node="node-a") == 1e7
    assert value(text, "problems", **where) == 1
    assert (
        value(text, "device_unsupported", node="node-a", gpu="0", uuid="GPU-1", signal="device.gpu_ecc_corrected") == 1
    )
    assert any(name == "grpo_sentinel_build_info" for name, _ in series(text))


def test_a_runaway_dimension_is_cut_and_counted(monkeypatch):
    monkeypatch.setattr("grpo_sentinel.sinks.prometheus.MAX_SERIES_PER_RANK", 100)
    text = rendered(run({0: status(values={f"reward.func_mean[{i}]": 1.0 for i in range(150)})}))
    assert sum(name == "grpo_sentinel_reward_func_mean" for name, _ in series(text)) == 100
    assert value(text, "scrape_series_dropped") == 50


def test_names_that_become_equal_do_not_void_the_scrape():
    values = {"reward.func_mean[a\x01]": 1.0, "reward.func_mean[a\x02]": 2.0}
    assert value(rendered(run({0: status(values=values)})), "reward_func_mean", **RANK, func="a?") == 1.0


def test_values_change_from_scrape_to_scrape_and_names_may_too():
    renderer = MetricsRenderer(clock=ManualClock(wall_ns=WALL_NS))
    for values in ({"policy.loss": 1.0}, {"policy.loss": 2.0}, {"reward.mean": 3.0, "policy.loss": 4.0}):
        text = rendered(run({0: status(values=values)}), renderer=renderer)
        for name, expected in values.items():
            assert value(text, name.replace(".", "_"), **RANK) == expected


def test_what_belongs_to_runs_that_are_gone_is_forgotten():
    renderer = MetricsRenderer(clock=ManualClock(wall_ns=WALL_NS))
    for index in range(50):
        renderer.write(batch(record(1, values={"policy.loss": math.nan}, run_id=f"run-{index}"), run_id=f"run-{index}"))
        renderer.render("", [run(run_id=f"run-{index}")])
    assert max(len(renderer._plans), len(renderer._nonfinite), len(renderer._snapshots)) == 1


def test_no_run_at_all_is_a_valid_scrape():
    body, _ = MetricsRenderer().render(OPENMETRICS, [])
    assert series(body.decode(), True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus")
def test_promtool_finds_nothing_to_complain_about():
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=rendered(), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_gpu_series_can_be_left_to_another_exporter_and_the_join_by_uuid_stays():
    renderer = MetricsRenderer(PrometheusConfig(gpu_metrics=False), ManualClock(wall_ns=WALL_NS))
    host = sample("node-a", {"device.host_cpu_ratio": 0.5}, source="host", labels={})
    text = rendered(run(samples={"GPU-1": sample(), "node-a": host}), renderer=renderer)
    names = {name for name, _ in series(text)}
    assert not any("_gpu_" in name for name in names)
    assert "grpo_sentinel_device_host_cpu_ratio" in names
    where = {"node": "node-a", "source": "nvml", "entity": "GPU-1"}
    assert value(text, "device_last_update_timestamp_seconds", **where) == WALL_NS / 1e9
