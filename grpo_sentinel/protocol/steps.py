"""Body of a step slot: pack a plan's values on the way in, one part of a record on the way out."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_sentinel.protocol.layout import STEP_HEAD
from grpo_sentinel.protocol.names import NameReader, NameTable
from grpo_sentinel.records import Kind, Mode

INT63 = (1 << 63) - 1
Place = tuple[int, int, int, int, int]  # step, generation, monotonic ns, wall ns, micro-batch


@dataclass(frozen=True, slots=True)
class Chunk:
    """The values of one slot: `[start, stop)` of the record, their packed ids and the packer for exactly that many."""

    start: int
    stop: int
    ids: bytes
    packer: struct.Struct


@dataclass(frozen=True, slots=True)
class Plan:
    """How records with one order of names are packed; made once per order."""

    chunks: tuple[Chunk, ...]
    keep: tuple[int, ...] | None  # positions that have an id; None = all of them
    left_out: int  # positions that have none


def make_plan(keys: Iterable[object], names: NameTable, per_slot: int, most_parts: int) -> Plan:
    """Look up the ids of `keys` and cut them into slots; what has no place in table or ring is left out."""
    found = [names.id_of(key) if isinstance(key, str) else None for key in keys]
    positions = [at for at, identifier in enumerate(found) if identifier is not None][: per_slot * most_parts]
    ids = [identifier for at in positions if (identifier := found[at]) is not None]
    chunks = []
    for start in range(0, max(1, len(ids)), per_slot):
        part = ids[start : start + per_slot]
        packer = struct.Struct(f"{STEP_HEAD.format}{len(part)}d")
        chunks.append(Chunk(start, start + len(part), struct.pack(f"<{len(part)}I", *part), packer))
    left_out = len(found) - len(positions)
    return Plan(tuple(chunks), tuple(positions) if left_out else None, left_out)


def pack_parts(plan: Plan, numbers: Collection[Any], place: Place, kind: Kind, mode: Mode) -> list[bytes]:
    """Pack one record into the bodies of its slots. Raises whatever a value that is no number raises."""
    chunks = plan.chunks
    if plan.keep is None and len(chunks) == 1:  # nearly always
        chunk = chunks[0]
        return [chunk.packer.pack(*place, chunk.stop, kind, mode, 0, 1, 0, *numbers) + chunk.ids]
    given = tuple(numbers)
    if plan.keep is not None:
        given = tuple(given[at] for at in plan.keep)
    parts = len(chunks)
    return [
        chunk.packer.pack(
            *place, chunk.stop - chunk.start, kind, mode, part, parts, 0, *given[chunk.start : chunk.stop]
        )
        + chunk.ids
        for part, chunk in enumerate(chunks)
    ]


def only_numbers(values: Mapping[Any, Any]) -> dict[Any, float]:
    """Leave out what is no number; a text that looks like one is none."""
    return {key: number for key, value in values.items() if (number := _number(value)) is not None}


def _number(value: Any) -> float | None:
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - a stranger's __float__ may raise anything
        return None


def clamp(value: Any, low: int, high: int) -> int:
    """Bring an integer into range."""
    return min(max(int(value), low), high)


def clamp_place(place: Place) -> Place:
    """Bring step, generation and micro-batch into the range of their fields."""
    step, generation, monotonic_ns, wall_ns, micro_batch = place
    return (
        clamp(step, -INT63, INT63),
        clamp(generation, -INT63, INT63),
        monotonic_ns,
        wall_ns,
        clamp(micro_batch, 0, (1 << 32) - 1),
    )


@dataclass(frozen=True, slots=True)
class Part:
    """What one step slot holds."""

    step: int
    generation: int
    monotonic_ns: int
    wall_ns: int
    micro_batch: int
    kind: Kind
    mode: Mode
    part: int
    parts: int
    names: Sequence[str]
    values: Sequence[float]


def decode_part(body: bytes, names: NameReader) -> Part | None:
    """Unpack a body whose CRC was checked; None when it contradicts itself or names an unknown id."""
    if len(body) < STEP_HEAD.size:
        return None
    head = STEP_HEAD.unpack_from(body)
    step, generation, monotonic_ns, wall_ns, micro_batch, count, kind, mode, part, parts, _ = head
    ids_at = STEP_HEAD.size + 8 * count
    if len(body) != ids_at + 4 * count or part >= parts:
        return None
    found = names.names_of(body[ids_at:])
    if found is None:
        return None
    values = memoryview(body)[STEP_HEAD.size : ids_at].cast("d").tolist()
    try:
        return Part(
            step, generation, monotonic_ns, wall_ns, micro_batch, Kind(kind), Mode(mode), part, parts, found, values
        )
    except ValueError:  # a kind or mode that this release does not know
        return None
