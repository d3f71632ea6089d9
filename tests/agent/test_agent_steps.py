"""The agent on a loop of one process: scaler skips, bounds, phases, its own time."""

import math
import types

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from ranks import Segment  # noqa: E402

from grpo_sentinel.agent import Settings, attach  # noqa: E402
from grpo_sentinel.agent.probes.groups import digest  # noqa: E402
from grpo_sentinel.protocol import RankReader, run_dir, write_control  # noqa: E402
from grpo_sentinel.records import Action, ControlWord, Kind, Phase  # noqa: E402


class Loop:
    """A watched linear model in this process."""

    def __init__(self, tmp_path, monkeypatch, **settings):
        monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
        monkeypatch.setenv("GRPO_SENTINEL_RUN_ID", "run")
        self.directory = run_dir(tmp_path, "run")
        torch.manual_seed(0)
        self.net = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.1)
        self.agent = attach(model=self.net, optimizer=self.optimizer, settings=Settings(strict=True, **settings))

    def step(self, scale=1.0):
        (self.net(torch.ones(2, 4)).sum() * scale).backward()
        self.agent.observe_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.agent.end_step()

    def segment(self):
        self.agent.close()
        reader = RankReader(self.directory / "rank-00000.ring")
        try:
            return Segment(reader)
        finally:
            reader.close()


@pytest.fixture
def loop(tmp_path, monkeypatch):
    made = []

    def make(**settings):
        made.append(Loop(tmp_path, monkeypatch, **settings))
        return made[-1]

    yield make
    for one in made:
        one.agent.close()


def test_a_loss_scalers_own_overflows_are_counted_apart_and_raise_no_alarm(loop):
    watched = loop()
    watched.agent.observe_optimizer(scaler=types.SimpleNamespace(is_enabled=lambda: True))
    assert watched.step(float("nan")).skipped
    watched.step()
    segment = watched.segment()
    assert segment.of("skip") == []
    assert segment.of("nonfinite") == []
    assert [segment.steps()[s]["optimizer.scaler_skips"] for s in (1, 2)] == [1, 1]
    assert segment.steps()[2]["optimizer.skipped_updates"] == 0


def test_a_bound_sent_ahead_by_the_sidecar_stops_the_update_it_is_meant_for(loop):
    watched = loop()
    write_control(watched.directory, ControlWord(request_id=0, skip_above_norm=10.0))
    assert not watched.step().skipped
    before = watched.net.weight.detach().clone()
    assert watched.step(1e4).skipped
    assert torch.equal(before, watched.net.weight)
    assert not watched.step().skipped
    assert [skip["step"] for skip in watched.segment().of("skip")] == [2]


def test_gate_halt_asks_for_checkpoint_and_halt_by_itself(loop):
    verdict = loop(gate="halt").step(float("inf"))
    assert (verdict.halt, verdict.checkpoint, verdict.skipped) == (True, True, True)
    assert verdict.reason == "the gradient is not finite"


def test_who_reads_only_the_trainers_log_learns_why_it_ends_there(loop, capsys):
    watched = loop(gate="halt")
    watched.step()
    assert "halts" not in capsys.readouterr().err
    watched.step(float("inf"))
    assert "step 2: the run writes a checkpoint and halts: the gradient is not finite" in capsys.readouterr().err


def test_gate_off_lets_everything_pass(loop):
    watched = loop(gate="off")
    assert not watched.step(float("nan")).skipped
    assert not bool(torch.isfinite(watched.net.weight).all())


def test_paths_reach_the_sidecar_absolute_since_it_works_elsewhere(loop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    watched = loop()
    watched.agent.configure(output_dir="out")
    watched.step()
    watched.agent.checkpoint_saved("out/checkpoint-1")
    segment = watched.segment()
    assert [body["output_dir"] for body in segment.of("config") if "output_dir" in body] == [str(tmp_path / "out")]
    assert [body["path"] for body in segment.of("checkpoint")] == [str(tmp_path / "out" / "checkpoint-1")]


def test_a_second_attachment_closes_the_first_and_takes_its_place(loop):
    first, second = loop(), loop()
    assert first.agent.closed
    second.step()
    assert second.agent.guard.errors == 0


def test_phases_of_the_loop_reach_heartbeat_and_record(loop):
    watched = loop()
    with watched.agent.phase("generate"):
        reader = RankReader(watched.directory / "rank-00000.ring")
        assert reader.heartbeat().phase is Phase.GENERATE
        reader.close()
    watched.step()
    steps = watched.segment().steps()
    assert "time.phase_seconds[generate]" in steps[1]
    assert steps[1]["sentinel.agent_seconds"] > 0
    assert steps[1]["time.step_seconds"] > steps[1]["sentinel.agent_seconds"] > steps[1]["sentinel.vote_seconds"]


def test_rewards_and_policy_may_be_given_as_plain_lists_and_tensors(loop):
    watched = loop()
    watched.agent.observe_rewards({"accuracy": [1.0, None, 0.0, 1.0]}, group_size=2)
    watched.agent.observe_policy(logp_BT=torch.full((4, 3), -1.0), mask_BT=torch.ones(4, 3), loss=torch.tensor(0.5))
    watched.step()
    segment = watched.segment()
    merged = {name: value for record in segment.records for name, value in record.values.items()}
    assert merged["reward.func_nonfinite[accuracy]"] == 1
    assert merged["policy.loss"] == 0.5


def test_no_user_tensor_outlives_its_step(loop):
    import gc
    import weakref

    watched = loop(local_gradients="always")
    logp = torch.full((4, 3), -1.0, requires_grad=True) * 1.0
    ids = torch.randint(0, 9, (4, 3))
    dead = [weakref.ref(logp), weakref.ref(ids)]
    watched.agent.observe_data(input_ids=ids, attention_mask=torch.ones_like(ids))
    watched.agent.observe_policy(logp_BT=logp, mask_BT=torch.ones(4, 3), loss=logp.sum())
    watched.step()
    del logp, ids
    gc.collect()
    assert [ref() for ref in dead] == [None, None]


def test_a_halt_request_mild_actions_are_left_to_the_sidecar(loop):
    watched = loop()
    write_control(watched.directory, ControlWord(request_id=9, action=Action.STACKS))
    assert not watched.step().halt
    assert watched.segment().ack is None


def test_above_its_share_the_agent_thins_what_is_costly_says_so_and_keeps_every_check(loop):
    watched = loop(overhead_share=1e-9, overhead_floor_seconds=1e-9)
    for _ in range(70):
        watched.step()
    watched.step(float("nan"))
    segment = watched.segment()
    steps = segment.steps()
    every = [steps[step]["sentinel.sampling_every"] for step in sorted(steps)]
    assert every[0] == 1
    assert every[-1] == 64
    assert [step for step in steps if step > 40 and "gradient.abs_p95" in steps[step]] == [64]
    assert [step for step in steps if step > 40 and "optimizer.update_ratio" in steps[step]] == [64]
    for checked in ("gradient.nonfinite_tensors", "gradient.norm_local", "optimizer.nonfinite_weights"):
        assert all(checked in values for values in steps.values()), "exempt"
    assert all(steps[step]["optimizer.step_applied"] == 1 for step in range(1, 71))
    notes = [note for note in segment.of("note") if note.get("what") == "sampling"]
    assert [(note["every"], note["enough"]) for note in notes] == [(2, True), (64, False)]
    assert notes[0]["self_seconds"] > notes[0]["allowed_seconds"]
    assert [event["step"] for event in segment.of("skip")] == [71]
    assert steps[71]["gradient.nonfinite_tensors"] == 2


def test_a_cheap_enough_agent_is_never_thinned(loop):
    watched = loop(overhead_share=1.0, overhead_floor_seconds=10.0)
    for _ in range(20):
        watched.step()
    segment = watched.segment()
    assert {values["sentinel.sampling_every"] for values in segment.steps().values()} == {1}
    assert segment.of("note") == []


def test_without_a_ring_nothing_is_read_but_the_gate_still_judges(tmp_path, monkeypatch):
    from grpo_sentinel.agent import entry, observing, reward_reading, update_probes

    def full(*args, **kwargs):
        raise OSError("no space left")

    def never(*args, **kwargs):
        raise AssertionError("read for nobody")

    probes = observing.gradient_probe, observing.policy_probe, observing.data_probe, reward_reading.reward_probe
    for probe in probes:
        monkeypatch.setattr(probe, "observe", never)
    monkeypatch.setattr(update_probes.OptimizerProbe, "after_step", never)
    monkeypatch.setattr(observing.MemoryProbe, "observe", never)
    monkeypatch.setattr(entry, "RankWriter", full)
    watched = Loop(tmp_path, monkeypatch)
    watched.agent.observe_data(input_ids=torch.ones(2, 2, dtype=torch.long))
    watched.agent.observe_rewards({"a": [1.0, 0.0]})
    watched.agent.observe_policy(loss=torch.tensor(1.0))
    assert not watched.step().skipped
    before = watched.net.weight.detach().clone()
    assert watched.step(float("nan")).skipped
    assert torch.equal(before, watched.net.weight)
    watched.agent.close()


def test_a_loop_gives_groups_calls_of_reward_functions_and_the_state_of_its_models(tmp_path, monkeypatch):
    loop = Loop(tmp_path, monkeypatch)
    judge = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1))
    loop.agent.begin_step(1)
    with loop.agent.scoring("accuracy"):
        scores = [1.0, 0.0, math.nan, 1.0]
    with pytest.raises(ZeroDivisionError), loop.agent.scoring("format"):
        1 / 0  # noqa: B018
    loop.agent.observe_rewards(
        {"accuracy": scores}, prompts_B=["a", "b", "c", "c"], completions_B=["x", "x", "y", "z"], group_size=2
    )
    loop.agent.observe_model("reference", judge, output=judge(torch.ones(1, 4)))
    loop.step()
    segment = loop.segment()
    (batch,) = [record.values for record in segment.records if record.kind is Kind.GENERATION]
    assert batch["data.mixed_groups"] == 1
    assert batch["data.duplicate_completion_ratio"] == 0.25
    assert batch["reward.func_failures[format]"] == 1
    assert batch["reward.func_failures[accuracy]"] == 0
    assert 0 <= batch["reward.func_latency_seconds[accuracy]"] < 5
    step = segment.steps()[1]
    assert step["reward.model_training_modules[reference]"] == 3
    assert step["reward.model_active_dropouts[reference]"] == 1
    assert step["reward.model_autograd[reference]"] == 1
    (sample,) = segment.of("sample")
    assert sample["samples"][0]["row"] == 2
    assert sample["samples"][0]["prompt_digest"] == digest("c")
    assert step["time.phase_seconds[reward]"] >= 0


def test_a_loop_with_two_optimizers_is_watched_as_one(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    monkeypatch.setenv("GRPO_SENTINEL_RUN_ID", "run")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    first = torch.optim.SGD(net[0].parameters(), lr=0.5)
    second = torch.optim.AdamW(net[1].parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(second, lambda done: 1.0 / (1 + done))
    agent = attach(model=net, optimizer=[first, second], scheduler=schedule, settings=Settings(strict=True))
    expected = {}
    for step in range(1, 4):
        old = [p.detach().double().clone() for p in net.parameters()]
        loss = net(torch.ones(2, 4)).sum() * (float("nan") if step == 3 else 1.0)
        loss.backward()
        agent.observe_gradients()
        rate = second.param_groups[0]["lr"]
        first.step()
        second.step()
        schedule.step()
        moved = torch.cat([(p.detach().double() - q).flatten() for p, q in zip(net.parameters(), old, strict=True)])
        weights = torch.cat([p.detach().double().flatten() for p in net.parameters()])
        expected[step] = (float(moved.norm()), float(weights.norm()), rate)
        first.zero_grad()
        second.zero_grad()
        agent.end_step()
    agent.close()
    reader = RankReader(run_dir(tmp_path, "run") / "rank-00000.ring")
    steps = Segment(reader).steps()
    reader.close()
    for step, (moved, weights, rate) in expected.items():
        values = steps[step]
        assert values.get("optimizer.update_norm", 0.0) == pytest.approx(moved, rel=1e-6)
        assert values["optimizer.weight_norm"] == pytest.approx(weights, rel=1e-6)
        assert values["optimizer.learning_rate"] == values["optimizer.learning_rate_expected"] == rate
        assert (values["optimizer.unheld_parameters"], values["optimizer.stale_parameters"]) == (0, 0)
    assert steps[2]["optimizer.sampled_tensors"] == 4
    assert steps[3]["optimizer.step_skipped"] == 1
    assert expected[3][0] == 0, "the gate is on both"
    assert steps[1]["optimizer.tensor_std_max[weights]"] > 0
