"""Whatever the loop hands over, no method raises; it is said in one line, and the vote and the gate go on."""

import inspect

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from grpo_sentinel.agent import Agent, NullAgent, attach  # noqa: E402
from grpo_sentinel.agent.core import Outcome  # noqa: E402
from grpo_sentinel.agent.null import Verdict  # noqa: E402
from grpo_sentinel.protocol import RankReader, run_dir  # noqa: E402


class Hostile:
    """Raises on whatever it is asked."""

    def _raise(self, *args):
        raise RuntimeError("asked for")

    __str__ = __repr__ = __len__ = __bool__ = __index__ = __float__ = __iter__ = __getitem__ = keys = _raise
    __eq__ = _raise
    __hash__ = object.__hash__


ABSURD = {
    "None": lambda: None,
    "str": lambda: "x",
    "list": lambda: [1, 2],
    "dict": lambda: {1: "a", "input_ids": "b", "loss": object()},
    "matrix": lambda: torch.ones(3, 3),
    "empty tensor": lambda: torch.ones(0),
    "meta tensor": lambda: torch.ones(2, 2, device="meta"),
    "complex": lambda: torch.ones((), dtype=torch.complex64),
    "NaN": lambda: float("nan"),
    "negative": lambda: -3,
    "huge": lambda: 10**30,
    "bool": lambda: True,
    "object": object,
    "hostile": Hostile,
    "class": lambda: int,
}
METHODS = sorted(name for name, value in vars(Agent).items() if callable(value) and name[0] != "_" and name != "disown")
NAMES = {
    "configure": ("vocab_size", "group_size", "max_grad_norm", "epsilon_low", "beta"),
    "observe_data": ("input_ids", "attention_mask", "prompt_ids", "completion_mask", "advantages", "labels"),
    "observe_rewards": (
        "rewards",
        "func_names",
        "group_size",
        "weights",
        "extra",
        "completion_lengths_B",
        "unheard_of",
    ),
    "observe_policy": ("logp_BT", "mask_BT", "advantages", "loss", "loss_scale", "beta", "group_size", "unheard_of"),
    "observe_optimizer": ("scaler", "engine", "scheduler", "learning_rate_expected", "unheard_of"),
}
RETURNS = {"end_step": Verdict, "vote": Outcome}


class Loop:
    def __init__(self, tmp_path, monkeypatch):
        monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
        monkeypatch.setenv("GRPO_SENTINEL_RUN_ID", "run")
        self.ring = run_dir(tmp_path, "run") / "rank-00000.ring"
        self.net = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.agent = attach(model=self.net, optimizer=self.optimizer)

    def step(self, scale=1.0, step=None):
        (self.net(torch.ones(2, 4)).sum() * scale).backward()
        self.agent.observe_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.agent.end_step(step)

    def segment(self):
        from ranks import Segment

        self.agent.close()
        reader = RankReader(self.ring)
        try:
            return Segment(reader)
        finally:
            reader.close()


@pytest.fixture
def loop(tmp_path, monkeypatch):
    watched = Loop(tmp_path, monkeypatch)
    yield watched
    watched.agent.close()


def calls(agent, name, value):
    """Call a method with one value at every place, and by every name, where it may stand."""
    method = getattr(agent, name)
    yield lambda: method(value())
    yield lambda: method(value(), value())
    yield lambda: method(value(), value(), value(), value())
    yield lambda: method()
    named = [
        p
        for p in inspect.signature(getattr(Agent, name)).parameters
        if p not in ("self", "tensors", "details", "context")
    ]
    for key in {*named, *NAMES.get(name, ())}:
        yield lambda key=key: method(**{key: value()})


def call_all(agent, name, value):
    for call in calls(agent, name, value):
        result = call()
        if name in ("phase", "scoring"):
            with result:
                pass
        elif name in RETURNS:
            assert isinstance(result, RETURNS[name])


@pytest.mark.parametrize("value", ABSURD, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_no_method_raises_and_the_gate_still_stops_a_bad_update(loop, capsys, name, value):
    call_all(loop.agent, name, ABSURD[value])
    loop.agent.end_step()
    if name not in ("close", "observe_optimizer"):  # a scaler's overflows are its own
        before = loop.net.weight.detach().clone()
        assert loop.step(float("nan")).skipped
        assert torch.equal(before, loop.net.weight)
        assert not loop.step().skipped
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert all(line.startswith("grpo-sentinel: ") for line in lines), lines
    assert len(lines) == len(set(lines)), "said once"


@pytest.mark.parametrize("value", ABSURD, ids=str)
def test_no_method_of_the_agent_that_does_nothing_raises_either(value):
    for name in METHODS:
        call_all(NullAgent("off"), name, ABSURD[value])


@pytest.mark.parametrize("value", ABSURD, ids=str)
@pytest.mark.parametrize("name", [n for n in inspect.signature(attach).parameters if n != "config"] + ["vocab_size"])
def test_attach_raises_for_nothing(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    agent = attach(**{name: ABSURD[value]()})
    repr(agent)
    assert agent.end_step() == Verdict()
    agent.close()


@pytest.mark.parametrize("value", ABSURD, ids=str)
def test_no_event_of_the_callback_raises(tmp_path, monkeypatch, value):
    transformers = pytest.importorskip("grpo_sentinel.integrations.transformers")
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    callback = transformers.SentinelCallback()
    make = ABSURD[value]
    for name in ("on_train_begin", "on_step_begin", "on_pre_optimizer_step", "on_step_end", "on_save", "on_train_end"):
        getattr(callback, name)(make(), make(), make(), model=make(), optimizer=make(), lr_scheduler=make())
        getattr(callback, name)()


def test_a_step_that_is_no_number_is_said_once_and_the_count_goes_on_with_a_vote_each(loop, capsys):
    loop.step(step=7)
    for bad in ("x", -1, torch.ones(2), 1.5):
        loop.step(step=bad)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "end_step(step='x'): no step number, the count stays at 8; give a whole number, 0 or more" in err
    segment = loop.segment()
    assert list(segment.steps()) == [7, 8, 9, 10, 11]
    assert all(values["optimizer.step_applied"] == 1 for values in segment.steps().values())
    assert segment.steps()[11]["sentinel.calls_left_out"] == 4
    assert segment.steps()[11]["sentinel.probe_errors"] == 0, "what a loop hands over is no failure of a probe"


def test_a_bad_argument_switches_nothing_off(loop):
    agent = loop.agent
    agent.observe_data([1, 2])
    agent.observe_data(torch.ones(3, 3))
    agent.observe_rewards("x")
    agent.observe_policy(loss=[1], logp_BT="x")
    agent.observe_policy(logp_BT=torch.ones(2, 2), mask_BT=torch.ones(3))
    agent.observe_gradients(norm="x")
    agent.end_step(object())
    assert agent.guard.off == {}
    assert (agent.guard.errors, agent.guard.left_out >= 7) == (0, True)
    agent.observe_data({"input_ids": torch.ones(2, 3, dtype=torch.long)})
    agent.observe_rewards({"accuracy": [1.0, 0.0]})
    agent.observe_policy(loss=torch.tensor(-0.5, requires_grad=True))
    loop.step()
    segment = loop.segment()
    merged = {name: value for record in segment.records for name, value in record.values.items()}
    assert merged["policy.loss"] == -0.5
    assert merged["reward.mean"] == 0.5
    assert any(name.startswith("data.") for name in merged)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda net: {}, "no model and no optimizer"),
        (lambda net: {"model": net}, "no optimizer was given: the gate cannot stop an update unless"),
        (lambda net: {"optimizer": torch.optim.SGD(net.parameters(), lr=0.1)}, "no model was given"),
    ],
)
def test_what_is_not_watched_is_said_in_one_line_with_the_ring(tmp_path, monkeypatch, capsys, given, said):
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    attach(**given(torch.nn.Linear(2, 1))).close()
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err
    assert str(tmp_path) in err


def test_a_loop_that_gives_all_is_told_nothing_and_its_agent_says_who_it_is(loop, capsys):
    assert capsys.readouterr().err == ""
    assert repr(loop.agent) == "<grpo_sentinel agent: run run, rank 0 of 1, active, voting, step 1>"
    loop.agent.close()
    assert "closed" in repr(loop.agent)
    assert repr(NullAgent("it is disabled")) == "<grpo_sentinel agent: nothing is watched (it is disabled)>"


def test_a_string_is_no_trainer_and_that_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    attach("nonsense").close()
    err = capsys.readouterr().err
    assert "attach('nonsense'): no trainer that it knows" in err
    assert err.count("\n") == 1


class CountedVotes:
    """The real transport of a world of one; counts how often the other ranks would have been waited for."""

    def __init__(self, transport):
        self.transport, self.votes = transport, 0

    def maximum(self, words):
        self.votes += 1
        return self.transport.maximum(words)

    def gather(self, row):
        return self.transport.gather(row)


@pytest.mark.parametrize("value", ABSURD, ids=str)
def test_every_end_of_a_step_has_exactly_one_vote_whatever_it_is_called_with(loop, value):
    core = loop.agent.core
    counted = core._transport = CountedVotes(core._transport)
    make = ABSURD[value]
    for call in calls(loop.agent, "end_step", make):
        before = counted.votes
        call()
        assert counted.votes == before + 1
    loop.agent.observe_gradients(make(), clip_limit=make())
    loop.agent.observe_gradients(make(), make(), make())
    loop.agent.end_step()
    assert counted.votes == 6
