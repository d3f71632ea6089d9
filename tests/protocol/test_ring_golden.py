"""Version 1 of the layout, kept as bytes: what it wrote once is readable for ever, and is still what is written."""

from __future__ import annotations

import math
import re
from pathlib import Path

from grpo_sentinel.clock import ManualClock
from grpo_sentinel.protocol import Geometry, RankReader, RankWriter
from grpo_sentinel.protocol.layout import VERSION
from grpo_sentinel.records import Ack, HaltState, Kind, Mode, Phase, RankIdentity

GOLDEN = Path(__file__).with_name("golden-v1.ring")
IDENTITY = RankIdentity(
    run_id="golden",
    parent_run_id="silver",
    rank=3,
    local_rank=1,
    world_size=8,
    role="trainer",
    host="node-7",
    pid=4242,
    pid_start_ticks=123456,
    pid_namespace=4026531836,
    boot_id="00000000-0000-4000-8000-000000000000",
    created_wall_ns=1_700_000_000_000_000_000,
)
GEOMETRY = Geometry(slots=16, slot_bytes=256, event_slots=4, event_slot_bytes=512, name_bytes=1024)


def write_golden(directory: Path) -> Path:
    """Write the segment of the golden file: wrapped records, a split one, events, heartbeat, notes."""
    clock = ManualClock(monotonic_ns=5_000_000_000)
    writer = RankWriter(directory, IDENTITY, GEOMETRY, clock=clock)
    for step in range(1, 21):
        clock.advance(1)
        writer.push({"gradient.global_norm": step / 4, "reward.mean": math.nan}, step=step)
    writer.push({"data.tokens": 512, "ключ": -math.inf}, step=21, kind=Kind.DATA, micro_batch=2, generation=5)
    writer.push({f"probe[{i}]": float(i) for i in range(30)}, step=21, mode=Mode.EVALUATION)
    for step in range(1, 6):
        writer.event("note", {"step": step, "value": math.inf, "text": "ü" * step}, step=step)
    writer.event("exception", {"traceback": "line\n" * 200}, step=21)
    writer.phase(Phase.OPTIMIZER, 21)
    writer.acknowledge(Ack(request_id=9, state=HaltState.DONE, step=21, wall_ns=clock.wall_ns(), detail="/ckpt/21"))
    writer.close("halted")
    return writer.path


def test_the_golden_segment_is_read_as_it_was_written():
    reader = RankReader(GOLDEN)
    batch = reader.poll()
    assert reader.identity == IDENTITY
    assert (batch.missed_records, batch.missed_events, batch.bad_slots) == (7, 2, 0)
    assert [record.sequence for record in batch.records] == [*range(8, 21), 21, 22]
    first, data, split = batch.records[0], batch.records[-2], batch.records[-1]
    assert (first.step, first.kind, first.mode, first.run_id, first.rank) == (8, Kind.STEP, Mode.TRAIN, "golden", 3)
    assert first.values["gradient.global_norm"] == 2.0
    assert math.isnan(first.values["reward.mean"])
    assert (first.monotonic_ns, first.wall_ns) == (13_000_000_000, 1_700_000_008_000_000_000)
    assert (data.kind, data.micro_batch, data.generation) == (Kind.DATA, 2, 5)
    assert data.values == {"data.tokens": 512.0, "ключ": -math.inf}
    assert (split.mode, split.values) == (Mode.EVALUATION, {f"probe[{i}]": float(i) for i in range(30)})
    assert [event.kind for event in batch.events] == ["note", "note", "note", "exception"]
    assert batch.events[0].body == {"step": 3, "value": math.inf, "text": "üüü"}
    assert batch.events[3].truncated
    assert batch.events[3].body["_cut"] is True
    assert (reader.heartbeat().step, reader.heartbeat().phase) == (21, Phase.FINISHED)
    assert reader.acknowledgement().detail == "/ckpt/21"
    assert reader.closed == "halted"
    reader.close()


def test_the_writer_still_writes_the_golden_bytes(tmp_path):
    """A difference means: raise VERSION, keep this file readable, add a golden file for the new one."""
    assert VERSION == 1
    assert write_golden(tmp_path).read_bytes() == GOLDEN.read_bytes()


def test_the_example_in_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(example, "docs/protocol.md", "exec"), {})


if __name__ == "__main__":
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        shutil.copyfile(write_golden(Path(place)), GOLDEN)
