"""What a step may cost the device: synchronising calls per optimizer step are few, and as many for any model."""

import gc
import sys
import weakref

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from grpo_sentinel.agent import Settings, attach, readback  # noqa: E402
from grpo_sentinel.agent.observing import Observer  # noqa: E402

HOST = {"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "numpy", "cpu", "__contains__"}
KERNELS = {"_local_scalar_dense", "nonzero", "masked_select", "unique2", "_unique2", "equal", "is_nonzero"}


class Syncs(TorchDispatchMode):
    """Counts the calls that would wait for a device, were the tensors on one; what is on the host already is free."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.on = True
        self.names = _Names(self)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if self.on and function.overloadpacket.__name__ in KERNELS:
            self.seen.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))

    def __enter__(self):
        self.names.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.names.__exit__(*error)


class _Names(TorchFunctionMode):
    def __init__(self, syncs):
        super().__init__()
        self.syncs = syncs

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if not self.syncs.on or getattr(function, "__name__", "") not in HOST:
            return function(*args, **(kwargs or {}))
        self.syncs.seen.append(function.__name__)
        self.syncs.on = False  # the kernel below it is the same wait
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self.syncs.on = True


@pytest.fixture
def syncs(monkeypatch):
    """Count outside of a landed readback: what that has copied lies on the host. Each copy to the host counts once."""
    counter = Syncs()

    def aside(method, counts):
        def call(self, *args, **kwargs):
            before, counter.on = counter.on, False
            try:
                if counts and before:
                    counter.seen.append("copy")
                return method(self, *args, **kwargs)
            finally:
                counter.on = before

        return call

    monkeypatch.setattr(readback.Readback, "harvest", aside(readback.Readback.harvest, True))
    # On a device the start of a copy waits for nothing: pinned memory, behind an event.
    monkeypatch.setattr(readback.Readback, "start", aside(readback.Readback.start, False))
    return counter


class Step:
    """A watched model of a given depth, as on a device: nothing of a step is harvested before it has to be."""

    def __init__(self, layers, **settings):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(layers)), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01, foreach=True)
        self.agent = attach(
            model=self.net,
            optimizer=self.optimizer,
            settings=Settings(strict=True, overhead_share=1.0, overhead_floor_seconds=1.0, **settings),
            vocab_size=50,
            group_size=2,
        )

    def run(self, counter=None, rewards=True):
        ids, logp = torch.randint(0, 50, (4, 6)), -torch.rand(4, 6)
        loss = self.net(torch.ones(2, 8)).sum()
        loss.backward()
        self.agent.begin_step(self.agent.step)
        with counter or torch.enable_grad():
            if rewards:
                self.agent.observe_rewards(torch.rand(4, 2), func_names=["a", "b"])
            self.agent.observe_data(completion_ids=ids, completion_mask=torch.ones_like(ids))
            self.agent.observe_policy(
                logp_BT=logp,
                old_logp_BT=logp - 0.1,
                ref_logp_BT=logp - 0.2,
                sampling_logp_BT=logp + 0.1,
                entropy_BT=-logp,
                completion_ids_BT=ids,
                mask_BT=torch.ones_like(ids),
                advantages=torch.randn(4),
                loss=loss,
            )
            self.agent.observe_gradients()
            self.agent.updates.before_optimizer(self.optimizer)
            self.agent.updates.after_optimizer(self.optimizer)
            self.agent.end_step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize("settings", [{}, {"local_gradients": "always", "activations_every": 1}])
def test_synchronising_calls_per_step_are_three_whatever_the_models_size(syncs, monkeypatch, settings):
    monkeypatch.setattr(Observer, "must_wait", property(lambda self: True))
    counts = {}
    for parameters in (10, 1000):
        step = Step(parameters // 2 - 1, **settings)
        assert len(list(step.net.parameters())) == parameters
        for _ in range(3):
            step.run(rewards=False)
        syncs.seen.clear()
        step.run(syncs, rewards=False)
        counts[parameters] = sorted(syncs.seen)
        step.agent.close()
    assert counts[10] == counts[1000]
    assert counts[1000].count("copy") == 2, "the data record before the forward, and one for all the rest a step later"
    assert len(counts[1000]) == 3, f"and one scalar for the gate, nothing else: {counts[1000]}"


def test_a_micro_batch_costs_as_many_calls_however_many_came_before_it_in_the_step():
    step = Step(1)
    batch = {name: torch.randint(0, 50, (4, 6)) for name in ("completion_ids", "prompt_ids")}
    batch |= {f"{name[:-4]}_mask": torch.ones(4, 6, dtype=torch.long) for name in tuple(batch)}
    calls = []

    def count(frame, event, argument):
        calls[-1] += event in ("call", "c_call")

    for _ in range(64):
        calls.append(0)
        before = sys.getprofile()
        sys.setprofile(count)
        step.agent.observe_data(batch)
        sys.setprofile(before)
    assert step.agent.observer.completion_tokens == 64 * 24
    assert calls[63] <= 1.05 * calls[2], f"the third took {calls[2]} calls, the 64th {calls[63]}"
    step.agent.close()


def test_no_user_tensor_is_kept_after_the_step(tmp_path):
    step = Step(2, local_gradients="always", activations_every=1)
    kept = []
    batch = {name: torch.randint(0, 50, (4, 6)) for name in ("completion_ids", "prompt_ids")}
    batch |= {f"{name[:-4]}_mask": torch.ones(4, 6, dtype=torch.long) for name in tuple(batch)}
    scores, logp = torch.rand(4, 2), (-torch.rand(4, 6)).requires_grad_() * 1.0
    policy = {"logp_BT": logp, "advantages": torch.randn(4), "old_logp_BT": -torch.rand(4, 6), "loss": logp.sum()}
    loss = step.net(torch.ones(2, 8)).sum()
    loss.backward()
    for tensor in (*batch.values(), scores, *policy.values(), loss, *(p.grad for p in step.net.parameters())):
        kept.append(weakref.ref(tensor))
    step.agent.observe_rewards(scores, func_names=["a", "b"])
    step.agent.observe_data(batch)
    step.agent.observe_policy(**policy)
    step.agent.observe_gradients(torch.tensor(1.0))
    step.optimizer.step()
    step.optimizer.zero_grad(set_to_none=True)
    step.agent.end_step()
    del batch, scores, logp, policy, loss, tensor
    gc.collect()
    assert [ref() for ref in kept if ref() is not None] == []
    step.agent.close()
    parameters = [weakref.ref(parameter) for parameter in step.net.parameters()]
    del step
    gc.collect()
    # The newest agent stays known for the end of the process; closed, it holds no part of the model.
    assert [ref() for ref in parameters if ref() is not None] == []
