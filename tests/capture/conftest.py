"""A tiny policy in a loop of its own, watched by the real agent, and the files that it captured."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from grpo_sentinel.agent.capture.files import read  # noqa: E402
from grpo_sentinel.agent.entry import attach  # noqa: E402
from grpo_sentinel.agent.settings import Settings  # noqa: E402
from grpo_sentinel.protocol import RankReader, run_dir, write_control  # noqa: E402
from grpo_sentinel.records import Action, ControlWord  # noqa: E402


class Loop:
    """Six tokens in, one loss out. `fault(step, batch, loss)` may spoil a step."""

    def __init__(self, tmp_path, *, dropout=0.0, run="run", **settings):
        torch.manual_seed(0)
        self.tmp_path, self.run = tmp_path, run
        self.model = torch.nn.Sequential(torch.nn.Embedding(11, 4), torch.nn.Dropout(dropout), torch.nn.Linear(4, 11))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        made = Settings(run_id=run, spool=str(tmp_path / "spool"), strict=True, **settings)
        self.agent = attach(model=self.model, optimizer=self.optimizer, settings=made, vocab_size=11)
        self.directory = run_dir(tmp_path, run)

    def loss(self, batch):
        logp = self.model(batch["completion_ids"]).log_softmax(-1)
        taken = logp.gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)
        return taken, -(taken * batch["advantages"].unsqueeze(1)).mean()

    def step(self, step, *, spoil=None, clip=None):
        batch = {
            "completion_ids": torch.randint(0, 11, (3, 6)),
            "completion_mask": torch.ones(3, 6, dtype=torch.long),
            "advantages": torch.randn(3),
        }
        if spoil:
            spoil(batch)
        self.agent.observe_data(batch)
        logp, loss = self.loss(batch)
        self.agent.observe_policy(logp_BT=logp.detach(), mask_BT=batch["completion_mask"], loss=loss.detach())
        loss.backward()
        if clip:
            self.agent.look_at_gradients(clip_limit=clip)
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            self.agent.observe_gradients(norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.agent.end_step(step)

    def ask(self, request_id, action):
        write_control(self.directory, ControlWord(request_id=request_id, action=Action[action], reason="a test asks"))

    def files(self, ending=".safetensors"):
        return sorted((self.tmp_path / "spool" / self.run).glob(f"*/*{ending}"))

    def captured(self, at=-1):
        return read(self.files()[at])

    def told(self, at=-1):
        return json.loads(self.files(".json")[at].read_text())

    def events(self, kind):
        reader = RankReader(next(self.directory.glob("*.ring")))
        try:
            return [event for event in reader.poll(None).events if event.kind == kind]
        finally:
            reader.close()

    def acks(self):
        reader = RankReader(next(self.directory.glob("*.ring")))
        try:
            return reader.acknowledgement()
        finally:
            reader.close()


@pytest.fixture
def loop(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    made = []

    def build(**settings):
        made.append(Loop(tmp_path, **settings))
        return made[-1]

    yield build
    for one in made:
        one.agent.close()


def nan_advantage(batch):
    batch["advantages"][1] = float("nan")


@pytest.fixture
def spoil():
    return nan_advantage
