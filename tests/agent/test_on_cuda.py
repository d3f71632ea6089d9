"""On a GPU: a step waits for the device three times and no more, says what it says on the CPU, and costs little.

The waits: the data record before the forward, one scalar for the gate, and the rewards' record. The step's own record
is copied behind an event and read one step later.
"""

import contextlib
import math
import statistics

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.gpu]
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip(
        "no CUDA device: the claims about waiting and cost on a GPU are not checked here", allow_module_level=True
    )

from ranks import Segment  # noqa: E402

from grpo_sentinel.agent import Settings, attach  # noqa: E402
from grpo_sentinel.agent.probes import data, gradient, policy  # noqa: E402
from grpo_sentinel.agent.probes.optimizer import OptimizerProbe  # noqa: E402
from grpo_sentinel.agent.readback import Readback  # noqa: E402
from grpo_sentinel.protocol import RankReader, run_dir  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PEER_LIMIT = 3.0  # x get_total_norm: two reads of every gradient instead of one, and a sample
SELF_MS = 4.0  # host time of a whole step's probes; the kernels they start run behind the trainer's own


@contextlib.contextmanager
def no_waiting():
    """Raise at the first call that would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def ids_and_masks(device, rows=8, length=32):
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 500, (rows, length), generator=g).to(device)
    return {"completion_ids": ids, "completion_mask": torch.ones_like(ids), "prompt_ids": ids[:, :7].contiguous(),
            "prompt_mask": torch.ones_like(ids[:, :7])}  # fmt: skip


def policy_inputs(device, dtype=torch.float32, rows=8, length=32):
    g = torch.Generator().manual_seed(2)
    logp = -torch.rand(rows, length, generator=g)
    near = lambda scale: (logp + scale * torch.randn(rows, length, generator=g)).to(dtype).to(device)  # noqa: E731
    return {
        "old_logp_BT": near(0.2), "ref_logp_BT": near(0.1), "sampling_logp_BT": near(0.1),
        "logp_BT": logp.to(dtype).to(device), "mask_BT": (torch.rand(rows, length, generator=g) < 0.8).to(device),
        "advantages": torch.randn(rows, generator=g).to(device),
        "entropy_BT": torch.rand(rows, length, generator=g).to(dtype).to(device),
        "completion_ids_BT": torch.randint(0, 9, (rows, length), generator=g).to(device),
    }  # fmt: skip


class Step:
    """A watched model on the GPU with every probe on."""

    def __init__(self, layers, dtype, **settings):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(layers))).to("cuda", dtype)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01, foreach=True)
        made = Settings(strict=True, overhead_share=1.0, overhead_floor_seconds=1.0, **settings)
        self.agent = attach(model=self.net, optimizer=self.optimizer, settings=made, vocab_size=512, pad_id=0, eos_id=1,
                            group_size=2, max_completion_length=32, max_grad_norm=1.0)  # fmt: skip
        self.batch, self.policy = ids_and_masks("cuda"), policy_inputs("cuda", dtype)
        self.x = torch.ones(2, 16, device="cuda", dtype=dtype)

    def run(self, aside=contextlib.nullcontext):
        """Do one step; `aside` is around everything that must not wait."""
        agent = self.agent
        agent.observe_rewards(torch.rand(8, 2, device="cuda"), func_names=["a", "b"])
        agent.observe_data(self.batch)
        loss = self.net(self.x).float().square().mean()
        with aside():
            agent.observe_policy(**self.policy, loss=loss.detach())
        with aside():
            loss.backward()
            agent.look_at_gradients()
        agent.vote()
        with aside():
            agent.updates.before_optimizer(self.optimizer)
            agent.updates.after_optimizer(self.optimizer)
        self.optimizer.zero_grad()
        with aside():
            agent.end_step()


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    monkeypatch.setenv("GRPO_SENTINEL_RUN_ID", "run")
    return run_dir(tmp_path, "run") / "rank-00000.ring"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layers", [2, 100])
def test_nothing_but_the_data_the_rewards_and_the_gate_waits_for_the_device(layers, dtype, place):
    step = Step(layers, dtype, local_gradients="always")
    for _ in range(20):  # plans, pinned memory, and one look at all moments
        step.run()
    for _ in range(17):  # the moments are read whole at every 16th step
        step.run(aside=no_waiting)
    step.agent.close()
    reader = RankReader(place)
    steps = Segment(reader).steps()
    reader.close()
    assert sorted(steps) == list(range(1, 38))
    assert steps[37]["sentinel.probes_off"] == 0
    assert {"policy.ratio_mean", "gradient.abs_p95", "optimizer.update_norm"} <= set(steps[37])


def test_observing_comes_back_while_the_device_is_still_busy():
    step = Step(4, torch.float32)
    for _ in range(5):
        step.run()
    loss = step.net(step.x).square().mean()
    loss.backward()
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second of clock ticks
    busy = torch.cuda.Event()
    busy.record()
    step.agent.observe_policy(**step.policy, loss=loss.detach())
    step.agent.look_at_gradients()
    assert not busy.query(), "an observation waited for the kernels before it"
    torch.cuda.synchronize()
    step.agent.close()


def harvested(pack):
    readback = Readback()
    readback.add(pack)
    return readback.harvest().values


def same(here, there, rel):
    assert set(here) == set(there)
    for name, value in here.items():
        if math.isfinite(value):
            assert there[name] == pytest.approx(value, rel=rel, abs=1e-6), name
        else:
            assert str(there[name]) == str(value), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gpu_says_what_the_cpu_says(dtype):
    numbers = policy_inputs("cpu", dtype)
    numbers["logp_BT"][0, 0] = float("nan")
    moved = {name: tensor.cuda() for name, tensor in numbers.items()}
    same(harvested(policy.observe(**numbers)), harvested(policy.observe(**moved)), 1e-6)

    names = {"completion_ids": "completion_ids_BC", "completion_mask": "completion_mask_BC",
             "prompt_ids": "prompt_ids_BP", "prompt_mask": "prompt_mask_BP"}  # fmt: skip
    known = {"vocab_size": 400, "pad_id": 0, "eos_id": 5, "unk_id": 7, "max_completion_length": 32}
    both = [{names[k]: v for k, v in ids_and_masks(device).items()} for device in ("cpu", "cuda")]
    same(*(harvested(data.observe(**one, **known)) for one in both), 1e-12)

    torch.manual_seed(3)
    grads = [
        torch.randn(300, 40).to(dtype),
        torch.randn(7).to(dtype),
        torch.tensor(2.0).to(dtype),
        torch.empty(0, dtype=dtype),
    ]
    for bad in (None, float("inf"), float("nan")):
        if bad is not None:
            grads[1][3] = bad
        sides = []
        for device in ("cpu", "cuda"):
            named = [
                (f"layers.{i}.w", torch.nn.Parameter(torch.zeros_like(g, device=device))) for i, g in enumerate(grads)
            ]
            for (_, parameter), grad in zip(named, grads, strict=True):
                parameter.grad = grad.to(device)
            sides.append(harvested(gradient.observe(named, clip_limit=1.0)))
        same(*sides, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_and_updates_read_the_same_on_both(dtype):
    sides = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(4)
        weights = [torch.randn(64, 64).to(dtype), torch.randn(5).to(dtype)]
        named = [(f"w{i}", torch.nn.Parameter(weight.to(device))) for i, weight in enumerate(weights)]
        optimizer = torch.optim.SGD([p for _, p in named], lr=0.5)
        for _, parameter in named:
            parameter.grad = torch.full_like(parameter, 0.25)
        probe = OptimizerProbe()
        probe.before_step(optimizer)
        optimizer.step()
        sides.append(harvested(probe.after_step(optimizer, named_parameters=named)))
    same(*sides, 1e-5)


def test_reading_every_gradient_costs_the_device_little_more_than_torchs_norm():
    grads = [torch.randn(4096, 4096, device="cuda") * 1e-3 for _ in range(16)]
    named = [(f"layers.{i}.w", torch.nn.Parameter(torch.empty_like(grad))) for i, grad in enumerate(grads)]
    for (_, parameter), grad in zip(named, grads, strict=True):
        parameter.grad = grad
    times = {"torch": [], "ours": []}
    calls = {"torch": lambda: torch.nn.utils.get_total_norm(grads), "ours": lambda: gradient.observe(named)}
    for turn in range(12):
        for name, call in calls.items():
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            call()
            ended.record()
            torch.cuda.synchronize()
            if turn > 1:
                times[name].append(begun.elapsed_time(ended))
    ours, theirs = statistics.median(times["ours"]), statistics.median(times["torch"])
    assert ours <= PEER_LIMIT * theirs, f"{ours:.2f} ms, get_total_norm {theirs:.2f} ms"


def test_a_steps_own_host_time_is_a_few_milliseconds_whatever_the_device_does(place):
    step = Step(8, torch.bfloat16)
    for _ in range(60):
        step.run()
    step.agent.close()
    reader = RankReader(place)
    costs = sorted(values["sentinel.agent_seconds"] for n, values in Segment(reader).steps().items() if n > 20)
    reader.close()
    quiet = 1e3 * costs[len(costs) // 10]  # the rest is what else the machine does
    assert quiet <= SELF_MS, f"{quiet:.2f} ms a step"
