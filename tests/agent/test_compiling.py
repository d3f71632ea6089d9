"""torch.compile in the training thread is a phase of its own, seen by the sidecar while it lasts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch


def test_the_heartbeat_says_compile_while_torch_compiles_and_not_after(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from grpo_sentinel.agent import Settings, attach
    from grpo_sentinel.protocol import RankReader, list_segments
    from grpo_sentinel.records import Phase

    seen = []

    def phase() -> Phase:
        reader = RankReader(list_segments(next(tmp_path.rglob("rank-*.ring")).parent)[0])
        try:
            return reader.heartbeat().phase
        finally:
            reader.close()

    def backend(graph, inputs):
        seen.append(phase())
        return graph.forward

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
        net = torch.nn.Linear(4, 1)
        compiled = torch.compile(net, backend=backend)
        agent = attach(
            model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), settings=Settings(strict=True), run_id="c"
        )
    agent.begin_step(1)
    with agent.phase("forward"):
        loss = compiled(torch.randn(2, 4)).mean()
        assert phase() is Phase.FORWARD
    loss.backward()
    agent.observe_gradients()
    agent.end_step(1)
    handler = sys.modules["torch._dynamo.callback"].callback_handler
    before = len(handler.start_callbacks)
    agent.close()
    assert seen == [Phase.COMPILE]
    assert len(handler.start_callbacks) == before - 1, "nothing of ours stays in the compiler"
