"""Loops that make more than one update in a step, that make gradients in a closure, or that never end a step."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from ranks import Segment  # noqa: E402

from grpo_sentinel.agent import Settings, attach  # noqa: E402
from grpo_sentinel.agent.step_packs import _MOST  # noqa: E402
from grpo_sentinel.protocol import RankReader, run_dir  # noqa: E402

X = torch.ones(2, 4)


@pytest.fixture
def watch(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    monkeypatch.setenv("GRPO_SENTINEL_RUN_ID", "run")
    torch.manual_seed(0)
    agents = []

    def make(strict=True, **watched):
        agents.append(attach(settings=Settings(strict=strict), **watched))
        return agents[-1]

    yield make
    for agent in agents:
        agent.close()


def finite(net):
    return all(bool(parameter.isfinite().all()) for parameter in net.parameters())


def test_an_optimizer_that_steps_after_its_own_backward_is_gated_too(watch, tmp_path):
    nets = torch.nn.ModuleDict({"critic": torch.nn.Linear(4, 1), "policy": torch.nn.Linear(4, 1)})
    critic, policy = (torch.optim.Adam(net.parameters(), lr=0.1) for net in nets.values())
    agent = watch(model=nets, optimizer=[critic, policy])
    skipped = []
    for step in range(1, 5):
        for name, optimizer in (("critic", critic), ("policy", policy)):
            optimizer.zero_grad()
            (nets[name](X).sum() * (float("nan") if (step, name) == (3, "policy") else 1.0)).backward()
            optimizer.step()
        skipped.append(agent.end_step().skipped)
    agent.close()
    assert finite(nets)
    assert skipped == [False, False, True, False]
    reader = RankReader(run_dir(tmp_path, "run") / "rank-00000.ring")
    segment = Segment(reader)
    reader.close()
    assert [skip["step"] for skip in segment.of("skip")] == [3]
    assert [segment.steps()[step]["optimizer.skipped_updates"] for step in (2, 3, 4)] == [0, 1, 1]
    assert segment.steps()[3]["optimizer.step_applied"] == 1, "the critic's"


@pytest.mark.parametrize("bad", [0, 2])
def test_of_several_updates_in_one_step_only_the_bad_one_is_skipped(watch, bad):
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    agent = watch(model=net, optimizer=optimizer)
    moved = []
    for update in range(4):
        before = net.weight.detach().clone()
        (net(X).sum() * (float("nan") if update == bad else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        moved.append(not torch.equal(before, net.weight))
    assert moved == [update != bad for update in range(4)]
    assert agent.end_step().skipped


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.LBFGS])
@pytest.mark.parametrize("by_name", [False, True])
def test_a_gradient_that_a_closure_makes_is_gated_in_the_same_step(watch, kind, by_name):
    nets = [torch.nn.Linear(4, 1) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())

    def train(net, agent, optimizer, steps):
        for step in steps:

            def closure(step=step):
                optimizer.zero_grad()
                loss = (net(X) ** 2).sum() * (float("nan") if step == 3 else 1.0)
                loss.backward()
                return loss

            optimizer.step(closure=closure) if by_name else optimizer.step(closure)
            if agent is not None:
                assert agent.end_step().skipped == (step == 3)

    train(nets[0], None, kind(nets[0].parameters(), lr=0.01), (1, 2))
    watched = kind(nets[1].parameters(), lr=0.01)
    train(nets[1], watch(model=nets[1], optimizer=watched), watched, (1, 2, 3))
    assert torch.equal(nets[0].weight, nets[1].weight)


def test_a_loop_that_never_ends_a_step_does_not_grow(watch, capsys):
    agent = watch(model=torch.nn.Linear(4, 1), strict=False)
    for _ in range(3):
        for _ in range(_MOST):
            agent.observer.known({"reward.mean": 1.0})
    assert len(agent.observer._step._added) == _MOST
    assert capsys.readouterr().err.count("call end_step() after every update") == 1
    agent.end_step()
    assert agent.observer._step._added == []
