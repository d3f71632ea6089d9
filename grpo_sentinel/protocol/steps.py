"""Body of a step slot: pack a plan's values on the way in, one part of a record on the way out."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from grpo_sentinel.protocol.layout import STEP_HEAD
from grpo_sentinel.protocol.names import NameReader, NameTable
from grpo_sentinel.records import Kind, Mode

INT63 = (1 << 63) - 1
Place = tuple[int, int, int, int, int]  # step, generation, monotonic ns, wall ns, micro-batch


class Chunk(NamedTuple):
    """The values of one slot: how many, and `pack(*head, *values, ids)` for exactly that many."""

    size: int
    pack: Callable[..., bytes]
    ids: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """How records with one order of names are packed; made once per order."""

    chunks: tuple[Chunk, ...]
    keep: tuple[int, ...] | None  # positions that have an id; None = all of them
    left_out: int  # positions that have none
    single: Chunk | None  # set when nothing is left out and one slot is enough: nearly always


def make_plan(keys: Iterable[object], names: NameTable, per_slot: int, most_parts: int) -> Plan:
    """Look up the ids of `keys` and cut them into slots; what has no place in table or ring is left out."""
    found = [names.id_of(key) if isinstance(key, str) else None for key in keys]
    positions = [at for at, identifier in enumerate(found) if identifier is not None][: per_slot * most_parts]
    ids = [identifier for at in positions if (identifier := found[at]) is not None]
    chunks = []
    for start in range(0, max(1, len(ids)), per_slot):
        part = ids[start : start + per_slot]
        body = struct.Struct(f"{STEP_HEAD.format}{len(part)}d{4 * len(part)}s")
        chunks.append(Chunk(len(part), body.pack, struct.pack(f"<{len(part)}I", *part)))
    left_out = len(found) - len(positions)
    single = chunks[0] if len(chunks) == 1 and not left_out else None
    return Plan(tuple(chunks), tuple(positions) if left_out else None, left_out, single)


def pack_parts(plan: Plan, numbers: Collection[Any], place: Place, kind: Kind, mode: Mode) -> list[bytes]:
    """Pack one record into the bodies of its slots. Raises whatever a value that is no number raises."""
    given: Iterator[Any] = iter(numbers)
    if plan.keep is not None:
        every = tuple(numbers)
        given = (every[at] for at in plan.keep)
    parts = len(plan.chunks)
    return [
        pack(*place, count, kind, mode, part, parts, 0, *islice(given, count), ids)
        for part, (count, pack, ids) in enumerate(plan.chunks)
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
