"""Where records go: the ring of this rank, or nowhere when it could not be made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from grpo_sentinel.records import Ack, Kind, Mode, Phase


class Writer(Protocol):
    """What the agent needs of `protocol.RankWriter`."""

    @property
    def names_overflow(self) -> int: ...

    def push(
        self,
        values: Mapping[str, float],
        *,
        step: int,
        kind: Kind = ...,
        mode: Mode = ...,
        micro_batch: int = ...,
        generation: int = ...,
    ) -> None: ...

    def event(self, kind: str, body: Mapping[str, Any], *, step: int) -> None: ...

    def phase(self, phase: Phase, step: int) -> None: ...

    def acknowledge(self, ack: Ack) -> None: ...

    def close(self, detail: str = ...) -> None: ...


class NoWriter:
    """Drops everything: shared memory was full, missing or read-only, and training goes on unseen."""

    names_overflow = 0

    def push(self, values: Mapping[str, float], **place: Any) -> None:
        """Drop it."""

    def event(self, kind: str, body: Mapping[str, Any], *, step: int) -> None:
        """Drop it."""

    def phase(self, phase: Phase, step: int) -> None:
        """Drop it."""

    def acknowledge(self, ack: Ack) -> None:
        """Drop it."""

    def close(self, detail: str = "finished") -> None:
        """Do nothing."""
