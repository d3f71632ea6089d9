"""A colocated rollout engine that is put to sleep: what it gives back stands in the record of the step."""

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from grpo_sentinel.agent import Settings, attach  # noqa: E402
from grpo_sentinel.integrations.engine_sleep import watch_sleep  # noqa: E402
from grpo_sentinel.integrations.patches import Patches  # noqa: E402
from grpo_sentinel.protocol import RankReader, run_dir  # noqa: E402

GIB = 1 << 30


class Device:
    """80 GiB, of which an engine takes 30 while it is awake."""

    def __init__(self):
        self.free = 80 * GIB - 30 * GIB

    def memory(self):
        return self.free, 80 * GIB


class Engine:
    def __init__(self, device, keeps=0):
        self.device, self.keeps, self.levels = device, keeps, []

    def sleep(self, level=1):
        self.levels.append(level)
        self.device.free += 30 * GIB - self.keeps
        return "asleep"


def steps_of(tmp_path, monkeypatch, trainer, device, calls):
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    monkeypatch.setenv("GRPO_SENTINEL_RUN_ID", "run")
    net = torch.nn.Linear(2, 1)
    agent, patches = attach(model=net, settings=Settings(strict=True)), Patches()
    assert watch_sleep(agent, trainer, patches, device.memory)
    agent.begin_step(1)
    calls()
    agent.end_step()
    patches.undo()
    agent.close()
    reader = RankReader(run_dir(tmp_path, "run") / "rank-00000.ring")
    try:
        return {record.step: dict(record.values) for record in reader.poll(None).records}
    finally:
        reader.close()


@pytest.mark.parametrize("place", ["vllm_generation", "trainer"], ids=["TRL 1", "older TRL"])
def test_what_the_engine_lets_go_and_may_take_is_recorded_and_its_own_answer_comes_back(tmp_path, monkeypatch, place):
    device = Device()
    engine = Engine(device, keeps=25 * GIB)
    args = SimpleNamespace(vllm_gpu_memory_utilization=0.375)
    trainer = SimpleNamespace(args=args, vllm_generation=SimpleNamespace())
    (trainer if place == "trainer" else trainer.vllm_generation).llm = engine
    answers = []
    steps = steps_of(tmp_path, monkeypatch, trainer, device, lambda: answers.append(engine.sleep(level=2)))
    assert answers == ["asleep"]
    assert engine.levels == [2]
    assert steps[1]["memory.engine_released_bytes"] == 5 * GIB
    assert steps[1]["memory.engine_budget_bytes"] == 30 * GIB
    assert "sleep" not in vars(engine), "put back"


def test_without_such_an_engine_or_without_cuda_nothing_is_wrapped():
    class Agent:
        guard = None

    trainer = SimpleNamespace(args=SimpleNamespace(), vllm_generation=None)
    assert not watch_sleep(Agent(), trainer, Patches())
    engine = Engine(Device())
    if not torch.cuda.is_available():
        assert not watch_sleep(Agent(), SimpleNamespace(args=SimpleNamespace(), llm=engine), Patches())
        assert "sleep" not in vars(engine)
