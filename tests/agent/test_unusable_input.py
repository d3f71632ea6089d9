"""What cannot be judged is said once, with a remedy, and left out: the probe goes on with the next call."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from ranks import Segment  # noqa: E402

from grpo_sentinel.agent import attach  # noqa: E402
from grpo_sentinel.protocol import RankReader, run_dir  # noqa: E402


class Loop:
    def __init__(self, tmp_path):
        self.ring = run_dir(tmp_path, "run") / "rank-00000.ring"
        self.net = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.agent = attach(model=self.net, optimizer=self.optimizer)

    def step(self, loss=None):
        self.net(torch.ones(2, 4)).sum().backward()
        if loss is not None:
            self.agent.observe_policy(loss=loss)
        self.agent.observe_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.agent.end_step()

    def segment(self):
        self.agent.close()
        reader = RankReader(self.ring)
        try:
            return Segment(reader)
        finally:
            reader.close()


@pytest.fixture
def loop(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    monkeypatch.setenv("GRPO_SENTINEL_RUN_ID", "run")
    loop = Loop(tmp_path)
    yield loop
    loop.agent.close()


IDS, MASK = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3)
LOGP = {"logp_BT": torch.zeros(2, 3), "old_logp_BT": torch.zeros(2, 3), "mask_BT": MASK}
UNUSABLE = {
    "no scores": lambda agent: agent.observe_rewards(None),
    "lists of unequal length": lambda agent: agent.observe_rewards({"a": [1.0, 2.0], "b": [1.0]}),
    "no function": lambda agent: agent.observe_rewards({}),
    "a group size in words": lambda agent: agent.observe_rewards([1.0, 2.0], group_size="x"),
    "prompts that are a number": lambda agent: agent.observe_rewards([1.0, 2.0], prompts_B=3, group_size=2),
    "advantages of other rows": lambda agent: agent.observe_policy(**LOGP, advantages=torch.ones(7)),
    "a vocabulary in words": lambda agent: (
        agent.configure(max_completion_length="x"),
        agent.observe_data(completion_ids=IDS, completion_mask=MASK),
    ),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_what_a_probe_cannot_read_switches_nothing_off_and_is_said_once(loop, what, capsys):
    UNUSABLE[what](loop.agent)
    UNUSABLE[what](loop.agent)
    said = [line for line in capsys.readouterr().err.splitlines() if "training goes on" in line]
    assert len(said) == 1
    assert said[0].startswith("grpo-sentinel: observe_")
    assert loop.agent.guard.off == {}
    loop.agent.observe_rewards({"a": [1.0, 2.0]})
    loop.step()
    segment = loop.segment()
    assert any(record.values.get("reward.mean") == 1.5 for record in segment.records)
    (told,) = segment.of("probe_error")
    assert told["switched_off"] is False


@pytest.mark.parametrize(
    "rewards", [[1.0, None, 2.0], {"f": [1.0, None, 2.0]}, [[1.0], [None], [2.0]], (1.0, None, 2.0)]
)
def test_none_among_scores_counts_as_nan(loop, rewards):
    loop.agent.observe_rewards(rewards)
    record = next(record for record in loop.segment().records if "reward.mean" in record.values)
    assert record.values["reward.nonfinite"] == 1
    assert record.values["reward.mean"] == 1.5


@pytest.mark.parametrize("rewards", [{"low_half": None}, {"low_half": None, "length": [1.0, 2.0]}])
def test_a_reward_function_that_returns_nothing_is_told_by_name_and_counted(loop, rewards, capsys):
    for given in (rewards, rewards, {"low_half": [1.0, 0.0], "length": [1.0, 2.0]}):
        loop.agent.observe_rewards(given, weights=[1.0] * len(given))
        loop.step()
    said = [line for line in capsys.readouterr().err.splitlines() if "training goes on" in line]
    assert len(said) == 1
    assert "the reward function low_half returned nothing" in said[0]
    segment = loop.segment()
    key = "reward.func_nothing[low_half]"
    assert [record.values[key] for record in segment.records if key in record.values] == [1, 2, 2]
    means = [record.values["reward.mean"] for record in segment.records if "reward.mean" in record.values]
    assert means == ([1.5, 2.0] if len(rewards) == 1 else [1.5, 1.5, 2.0])[-len(means) :]


@pytest.mark.parametrize("where", ["scoring", "phase"])
def test_an_exception_of_a_reward_function_in_a_plain_loop_is_told_with_its_phase(loop, where):
    def generate():
        reward = loop.agent.scoring("accuracy") if where == "scoring" else loop.agent.phase("reward")
        with loop.agent.phase("generate"), reward:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        generate()
    loop.agent.exception(caught.value, "the training script")
    (told,) = loop.segment().of("exception")
    assert (told["type"], told["phase"]) == ("ZeroDivisionError", "reward")


def test_scores_that_make_no_whole_groups_are_said_and_read(loop, capsys):
    loop.agent.observe_rewards([1.0, 2.0, 3.0, 4.0, 5.0], group_size=4)
    assert "5 scores, group_size=4" in capsys.readouterr().err
    assert any(record.values.get("reward.mean") == 3 for record in loop.segment().records)


def test_a_probe_that_is_off_is_named_in_the_record(loop):
    loop.agent.guard.run("reward", lambda: 1 / 0)
    loop.step()
    segment = loop.segment()
    assert segment.steps()[1]["sentinel.probe_off[reward]"] == 1
    (told,) = segment.of("probe_error")
    assert told["switched_off"] is True


def test_a_misspelt_argument_of_attach_is_named_with_the_right_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    monkeypatch.setenv("GRPO_SENTINEL_RUN_ID", "run")
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    agent = attach(modle=net, optimizer=optimizer, gruop_size=4, dataset="own", epsilon=0.2)
    said = capsys.readouterr().err
    agent.close()
    assert "attach(modle=...): unknown" in said
    assert "did you mean model?" in said
    assert "did you mean group_size?" in said
    assert "dataset" not in said
    assert "epsilon" not in said


def test_steps_that_go_backwards_are_said_once_and_the_run_goes_on(loop, capsys):
    capsys.readouterr()
    for step in (5, 3, 2, -1):
        loop.agent.end_step(step)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[2].strip()[:20] for line in said] == ["end_step(step=3): st", "end_step(step=-1): n"]
    assert "step 5 has ended" in said[0]
    loop.step()
    assert len(loop.segment().steps()) >= 4


def test_a_step_that_was_begun_by_its_number_is_no_step_backwards(loop, capsys):
    loop.agent.end_step(5)
    loop.agent.begin_step(2)
    capsys.readouterr()
    loop.agent.end_step(2)
    assert capsys.readouterr().err == ""
