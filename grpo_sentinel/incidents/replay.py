"""A bundle's contents in the order in which the rules engine saw them live."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from grpo_sentinel.history import frames
from grpo_sentinel.incidents.model import Source
from grpo_sentinel.records import EventRecord, Frame, Sample


def items(source: Source) -> Iterator[Frame | EventRecord | Sample]:
    """Yield events before the frame of their step, frames by step, and readings of devices by their time.

    What the engine judges by heartbeats (silence, death, stragglers) is not in a bundle and does not come again.
    """
    records = sorted(source.records(), key=lambda record: (record.step, record.wall_ns))
    events = deque(sorted(source.events(), key=lambda event: (event.step, event.wall_ns)))
    samples = deque(sorted(source.samples(), key=lambda sample: sample.wall_ns))
    for frame in frames(records, source.about.run_id):
        while events and events[0].step <= frame.step:
            yield events.popleft()
        while samples and samples[0].wall_ns <= frame.wall_ns:
            yield samples.popleft()
        yield frame
    yield from events
    yield from samples


__all__ = ["items"]
