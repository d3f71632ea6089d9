"""The governor in a real loop: what it thins, what it leaves alone, and that it says both."""

import math
import statistics

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from ranks import Segment  # noqa: E402

from grpo_sentinel.agent import Settings, attach  # noqa: E402
from grpo_sentinel.protocol import RankReader, run_dir  # noqa: E402
from grpo_sentinel.records import Kind  # noqa: E402

STEPS = 90
BAD_IDS, NAN = 61, 71  # steps with a fault, odd: never one that is sampled
COSTLY = {"gradient.abs_p50", "optimizer.update_norm", "policy.repetition_ratio"}
EXEMPT = {
    "gradient.norm_local", "gradient.nonfinite_tensors", "gradient.abs_max", "gradient.clip_coefficient",
    "optimizer.nonfinite_weights", "policy.logp_nonfinite", "policy.advantage_abs_bound", "policy.advantage_abs_max",
    "policy.loss_nonfinite", "policy.kl_k3_overflow",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train with completions long enough that their repetition costs far more than everything else."""

    def train(steps, ids, **settings):
        patch = pytest.MonkeyPatch()
        folder = tmp_path_factory.mktemp("thinning")
        patch.setenv("GRPO_SENTINEL_DIR", str(folder))
        patch.setenv("GRPO_SENTINEL_RUN_ID", "run")
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        made = Settings(strict=True, segment_slots=1024, **settings)
        agent = attach(model=net, optimizer=optimizer, settings=made, vocab_size=1000, group_size=2, max_grad_norm=1.0)
        small = torch.randint(0, 1000, (4, 8))
        for step in range(1, steps + 1):
            agent.observe_data(completion_ids=small + 1000 * (step == BAD_IDS), completion_mask=torch.ones_like(small))
            loss = net(torch.ones(2, 4)).sum() * (math.nan if step == NAN else 1.0)
            logp = -torch.rand(4, 8)
            agent.observe_policy(
                logp_BT=logp, ref_logp_BT=logp, advantages=torch.randn(4), loss=loss.detach(), on_policy=True
            )
            if ids is not None:
                agent.observe_policy(completion_ids_BT=ids)
            loss.backward()
            agent.observe_gradients()
            optimizer.step()
            optimizer.zero_grad()
            agent.end_step()
        agent.close()
        patch.undo()
        reader = RankReader(run_dir(folder, "run") / "rank-00000.ring")
        try:
            return Segment(reader)
        finally:
            reader.close()

    return train


@pytest.fixture(scope="module")
def thinned(run):
    """Sampling costs tens of milliseconds, the rest a few; 15 ms are allowed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield run(STEPS, torch.randint(0, 1000, (64, 4096)), overhead_share=1e-9, overhead_floor_seconds=0.015)
    finally:
        torch.set_num_threads(threads)


def test_costly_probes_run_seldom_enough_that_the_share_is_kept(thinned):
    steps = thinned.steps()
    every = int(steps[STEPS]["sentinel.sampling_every"])
    assert every >= 2
    costs = {n: s["sentinel.agent_seconds"] for n, s in steps.items() if n > STEPS // 2}
    sampled = [seconds for n, seconds in costs.items() if n % every == 0]
    plain = [seconds for n, seconds in costs.items() if n % every]
    full, rest = statistics.median(sampled), statistics.median(plain)
    assert full > 2 * rest, "the test's costly probe is not costly"
    assert rest + (full - rest) / every <= 1.5 * steps[STEPS]["sentinel.agent_allowed_seconds"]
    assert steps[STEPS]["sentinel.agent_allowed_seconds"] == 0.015


def test_what_is_thinned_is_absent_between_and_what_is_exempt_is_there_at_every_step(thinned):
    steps = thinned.steps()
    assert sorted(steps) == list(range(1, STEPS + 1))
    for number in range(STEPS // 2, STEPS + 1):
        every = steps[number]["sentinel.sampling_every"]
        here = set(steps[number])
        if number % every:
            assert not COSTLY & here, number
        elif number not in (BAD_IDS, NAN):
            assert here >= COSTLY, number
        missing = EXEMPT - here
        assert missing == ({"gradient.abs_max"} if number == NAN else set()), number  # no tensor has one there


def test_a_fault_at_a_step_that_is_not_sampled_is_seen_and_gated(thinned):
    data = {record.step: record.values for record in thinned.records if record.kind is Kind.DATA}
    assert data[BAD_IDS]["data.out_of_vocabulary"] == 32
    step = thinned.steps()[NAN]
    assert step["policy.loss_nonfinite"] == 1
    assert step["gradient.nan_tensors"] == 2
    assert step["optimizer.step_skipped"] == 1
    (event,) = [body for body in thinned.of("nonfinite") if body["where"] == "after_reduce"]
    assert (event["step"], event["names"]) == (NAN, ["weight", "bias"])


def test_thinning_is_told_once(thinned):
    (note,) = [body for body in thinned.of("note") if body.get("what") == "sampling" and body["enough"]]
    assert note["every"] == 2
    assert note["self_seconds"] > note["allowed_seconds"] == 0.015
    assert "costly probes run every 2 steps" in note["text"]


def test_where_thinning_is_not_enough_an_event_a_line_and_the_signals_say_so(run, capfd):
    segment = run(40, None, overhead_share=1e-9, overhead_floor_seconds=1e-6)
    notes = [body for body in segment.of("note") if body.get("what") == "sampling"]
    assert [body["enough"] for body in notes] == [True, False]
    assert notes[1]["plain_seconds"] > notes[1]["allowed_seconds"] == 1e-6
    last = segment.steps()[40]
    assert last["sentinel.sampling_every"] == 64
    assert last["sentinel.agent_plain_seconds"] > last["sentinel.agent_allowed_seconds"] == 1e-6
    assert "gradient.nonfinite_tensors" in last
    lines = [line for line in capfd.readouterr().err.splitlines() if "costly probes" in line]
    assert len(lines) == 2
    assert "what runs at every step whatever it costs" in lines[1]


def test_a_cheap_loop_is_sampled_at_every_step_and_nothing_is_said(run):
    segment = run(20, None, overhead_share=0.005, overhead_floor_seconds=1.0)
    assert all(values["sentinel.sampling_every"] == 1 for values in segment.steps().values())
    assert all("gradient.abs_p50" in values for values in segment.steps().values())
    assert not [body for body in segment.of("note") if body.get("what") == "sampling"]
    assert "sentinel.agent_plain_seconds" not in segment.steps()[20]
