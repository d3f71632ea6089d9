"""A real, tiny TRL GRPO run: attached by hand, by callback and with no line of code; watched, gated, halted."""

import sys
from pathlib import Path

import pytest

from grpo_sentinel.records import HaltState, Kind

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))
from ranks import ROOT, Scenarios

pytestmark = pytest.mark.torch
HERE = Path(__file__).parent
STRICT = {"GRPO_SENTINEL_STRICT": "1"}
OFF = {"env": {"GRPO_SENTINEL": "0"}}
HALT = "CHECKPOINT_AND_HALT"
ONE = {
    "plain": {"iterations": 2, "beta": 0.04, **OFF},
    "watched": {"attach": "explicit", "iterations": 2, "beta": 0.04},
    "accumulation": {"attach": "explicit", "accumulation": 2, "steps": 3, "workers": 1},
    "schedule": {"attach": "explicit", "lr_behind_the_schedule": 2},
    "twice": {"steps": 2, "twice": "fresh"},
    # The last: a crash leaves its agent open, and the next attachment would close it.
    "raise": {"attach": "explicit", "fault": "raise", "fault_rank": 0, "fault_step": 2},
}
TWO = {
    "no line of code": {"steps": 5, "fault": "local_nan"},
    "halt": {"attach": "explicit", "steps": 30, "halt_at": [3, 1, HALT]},
    "callback": {
        "attach": "callback",
        "steps": 30,
        "fault": "reduced_nan",
        "fault_step": 2,
        "halt_at": [4, 0, HALT],
    },
    "sleep": {"attach": "explicit", "steps": 4, "fault": "sleep", "fault_step": 3, "iterations": 2},
    "evaluation": {"attach": "explicit", "steps": 4, "eval_steps": 2},
}


@pytest.fixture(scope="session")
def assets(tmp_path_factory):
    from tiny import build

    return build(tmp_path_factory.mktemp("tiny-policy"))


@pytest.fixture(scope="session")
def one(assets, tmp_path_factory):
    """One rank, as an installed wheel would start it: the `.pth` is read, and the switch is on."""
    folder = tmp_path_factory.mktemp("grpo1")
    return Scenarios(HERE / "zero_code.py", folder, 1, ONE, str(assets), GRPO_SENTINEL="1", **STRICT)


@pytest.fixture(scope="session")
def two(assets, tmp_path_factory):
    folder = tmp_path_factory.mktemp("grpo2")
    return Scenarios(HERE / "zero_code.py", folder, 2, TWO, str(assets), GRPO_SENTINEL="1", **STRICT)


def layers_of(values):
    return {name.partition(".")[0] for name in values}


def test_every_layer_is_recorded_from_a_real_trainer_and_nothing_it_computes_changes(one):
    plain, result = one["plain"].ranks[0], one["watched"]
    watched = result.ranks[0]
    assert watched["log"] == plain["log"], "losses, rewards and norms are bit-identical"
    assert watched["weights"] == plain["weights"]
    assert watched["wrapped"] == plain["wrapped"], "everything wrapped was put back"
    segment = result.segment(0)
    steps = segment.steps()
    assert list(steps) == [1, 2, 3, 4]
    seen = set().union(*(layers_of(record.values) for record in segment.records))
    assert seen >= {"data", "reward", "policy", "gradient", "optimizer", "memory", "time", "sentinel"}
    assert [row["grad_norm"] for row in watched["log"][:4]] == [steps[s]["gradient.norm_preclip"] for s in steps]
    assert [(r.step, r.generation) for r in segment.records if r.kind is Kind.GENERATION] == [(1, 1), (3, 2)]
    order = [record.kind for record in segment.records if record.step == 3]
    assert order == [Kind.GENERATION, Kind.DATA, Kind.STEP], (
        "data goes out before the forward, with the step still open"
    )
    assert steps[2]["policy.on_policy"] == 0
    assert steps[1]["policy.on_policy"] == 1
    assert segment.closed == "finished"
    assert segment.of("probe_error") == []
    config = segment.of("config")[0]
    assert (config["loss_type"], config["num_generations"], config["beta"], config["vocab_size"]) == (
        "dapo",
        4,
        0.04,
        320,
    )


def test_a_learning_rate_set_behind_the_schedules_back_shows_in_that_step_alone(one):
    steps = one["schedule"].segment(0).steps()
    pairs = {s: (v["optimizer.learning_rate"], v["optimizer.learning_rate_expected"]) for s, v in steps.items()}
    assert [step for step, (used, expected) in pairs.items() if used != expected] == [2]
    assert pairs[2] == (10.0, pytest.approx(7.5e-4)), "linear decay over four steps"


def test_without_a_line_of_code_the_rank_with_the_bad_gradient_names_itself_and_weights_stay_clean(two):
    result = two["no line of code"]
    first, second = result.ranks
    assert first["finite"]
    assert first["weights"] == second["weights"]
    named = [event for event in result.segment(1).of("nonfinite") if event["where"] == "before_reduce"]
    assert {event["step"] for event in named} == {4, 5}
    assert named[0]["names"] == ["model.layers.1.mlp.up_proj.weight"]
    assert not [event for event in result.segment(0).of("nonfinite") if event["where"] == "before_reduce"]
    assert [event["step"] for event in result.segment(0).of("skip")] == [3, 4, 5]
    assert result.segment(0).steps()[5]["optimizer.skipped_updates"] == 3


def test_a_halt_saves_on_all_ranks_at_the_same_step_though_the_script_never_saves(two):
    result = two["halt"]
    assert [(rank["ended"], rank["step"]) for rank in result.ranks] == [("finished", 3)] * 2
    for rank in (0, 1):
        segment = result.segment(rank)
        assert (segment.ack.request_id, segment.ack.state, segment.ack.step) == (7, HaltState.DONE, 3)
        assert segment.closed == "halted"
    saved = Path(result.segment(0).ack.detail)
    assert saved.name == "checkpoint-3"
    assert (saved / "model.safetensors").exists()


def test_the_callback_alone_votes_gates_and_halts(two):
    result = two["callback"]
    assert [rank["step"] for rank in result.ranks] == [4, 4]
    assert result.ranks[0]["weights"] == result.ranks[1]["weights"]
    assert result.ranks[0]["finite"]
    assert [event["step"] for event in result.segment(1).of("skip")] == [2]


def test_an_exception_in_the_training_step_is_told_before_it_leaves(one):
    result = one["raise"]
    assert result.ranks[0]["ended"] == "RuntimeError: injected into the training step"
    segment = result.segment(0)
    assert [(e["step"], e["type"], e["message"]) for e in segment.of("exception")] == [
        (2, "RuntimeError", "injected into the training step")
    ]
    assert "faulty_step" in segment.of("exception")[0]["traceback"]
    assert segment.closed is None, "a crash is no end on purpose"


def test_with_accumulation_one_vote_and_one_record_serve_all_micro_batches(one):
    result = one["accumulation"]
    segment = result.segment(0)
    assert list(segment.steps()) == [1, 2, 3]
    data = [(r.step, r.micro_batch, r.values["data.samples"]) for r in segment.records if r.kind is Kind.DATA]
    assert data == [(s, m, 4.0 * (m + 1)) for s in (1, 2, 3) for m in (0, 1)]
    assert segment.of("probe_error") == []


def test_the_late_rank_is_told_from_the_waiting_one(two):
    result = two["sleep"]
    late, waiting = result.segment(1).steps(), result.segment(0).steps()
    for step in (3, 4):  # step 3 generates first, step 4 trains at once
        assert waiting[step]["time.step_seconds"] > 3, "both take as long"
        assert late[step]["time.before_collective_seconds"] > waiting[step]["time.before_collective_seconds"] + 1.5


def test_evaluation_is_kept_apart_and_does_not_vote(two):
    result = two["evaluation"]
    segment = result.segment(0)
    kinds = {(record.mode.name, record.kind.name) for record in segment.records}
    assert kinds == {("TRAIN", "DATA"), ("TRAIN", "STEP"), ("TRAIN", "GENERATION"), ("EVALUATION", "GENERATION")}
    assert segment.steps()[4]["sentinel.core_active"] == 1
    third = segment.steps()[3]
    assert third["time.phase_seconds[evaluation]"] > 0
    assert third["time.step_seconds"] < sum(v for k, v in third.items() if k.startswith("time.phase_seconds"))


def test_training_twice_in_one_process_attaches_twice_and_wraps_once(one):
    result = one["twice"]
    assert result.ranks[0]["ended"] == "finished"
    assert "_calculate_rewards" not in result.ranks[0]["wrapped"]
    assert list(result.segment(0).steps()) == [1, 2, 3, 4]


def test_the_pth_line_is_inert_without_the_switch_and_may_run_twice(tmp_path):
    import subprocess

    code = (
        f"import site, sys; site.addsitedir({str(ROOT)!r}); site.addsitedir({str(ROOT)!r}); exec(open({str(ROOT / 'grpo_sentinel.pth')!r}).read());"
        "print(sum('grpo_sentinel' in type(f).__module__ for f in sys.meta_path), 'torch' in sys.modules)"
    )
    for switch, expected in (("1", "1 False"), ("0", "0 False"), ("", "0 False")):
        env = {"PATH": "/usr/bin:/bin", "GRPO_SENTINEL": switch}
        done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == expected, done.stderr
        assert done.stderr == ""
