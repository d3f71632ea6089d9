"""The plain loops of README and quickstart as a person copies them: a halt that is asked for is acknowledged as saved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from grpo_sentinel.protocol import RankReader, run_dir, write_control  # noqa: E402
from grpo_sentinel.records import Action, ControlWord, HaltState, Liveness  # noqa: E402

ROOT = Path(__file__).parents[2]
ASKED_AT = 3


def loop_of(document: str) -> str:
    """Take the block of a document that is a whole loop of one's own."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [block for block in blocks if "attach(model=model, optimizer=optimizer)" in block]
    return found


@pytest.mark.parametrize("document", ["README.md", "docs/quickstart.md"])
def test_a_documented_loop_saves_when_asked_reports_it_and_ends_closed(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_SENTINEL_DIR", str(tmp_path))
    monkeypatch.setenv("GRPO_SENTINEL_RUN_ID", "copied")
    directory = run_dir(tmp_path, "copied")
    model = torch.nn.Linear(4, 1)
    done = []

    def forward(_model_or_batch: object, *_: object) -> torch.Tensor:
        done.append(1)
        if len(done) == ASKED_AT:
            write_control(directory, ControlWord(request_id=7, action=Action.CHECKPOINT_AND_HALT, reason="asked"))
        return model(torch.ones(2, 4)).square().mean()

    def save(_model: object, step: int) -> Path:
        torch.save(model.state_dict(), tmp_path / f"checkpoint-{step}.pt")
        return tmp_path / f"checkpoint-{step}.pt"

    given = {
        "model": model, "optimizer": torch.optim.AdamW(model.parameters()), "loader": [None] * 50, "steps": 50,
        "train_on": forward, "grpo_loss": forward, "rollout": lambda _model: {"rewards": torch.ones(2)}, "save": save,
    }  # fmt: skip
    exec(compile(loop_of(document), document, "exec"), given)

    reader = RankReader(directory / "rank-00000.ring")
    ack = reader.acknowledgement()
    assert ack is not None
    assert (ack.request_id, ack.state) == (7, HaltState.DONE), ack.detail
    assert ack.detail == str(tmp_path / f"checkpoint-{ack.step}.pt")
    assert reader.liveness() is Liveness.CLOSED
    reader.close()
    assert len(done) < 50
