"""All mechanisms, and the healthy twin that every trainer kind has."""

from __future__ import annotations

from benchmarks.faultbench import (
    mechanisms_data,
    mechanisms_gradient,
    mechanisms_memory,
    mechanisms_optimizer,
    mechanisms_policy,
    mechanisms_reward,
)
from benchmarks.faultbench.fault import EVER, LOOP1, LOOP2, TRL1, TRL2, Mechanism

LAYERS = ("data", "reward", "policy", "gradient", "optimizer", "memory")
ROWS: tuple[Mechanism, ...] = (
    *mechanisms_data.ROWS,
    *mechanisms_reward.ROWS,
    *mechanisms_policy.ROWS,
    *mechanisms_gradient.ROWS,
    *mechanisms_optimizer.ROWS,
    *mechanisms_memory.ROWS,
)
MECHANISMS: dict[str, Mechanism] = {row.name: row for row in ROWS}


def twin(row: Mechanism, trainer: str) -> Mechanism:
    """The run of the same trainer and configuration without a fault; rows of equal settings share it."""
    own = {} if row.name == "bf16_swallows_updates" else {name: row.config[name] for name in sorted(row.config)}
    suffix = "".join(f"-{name}{value}" for name, value in own.items())
    alike = [
        other
        for other in ROWS
        if trainer in other.trainers and not other.ends and (other.config == row.config or not own)
    ]
    longest = max((other.steps for other in alike), default=80)
    return Mechanism(
        name=f"healthy_twin{suffix}",
        layer="",
        what="no fault",
        inject=lambda fault: None,
        roots=(),
        trainers=(trainer,),
        start=EVER,
        steps=longest,
        config=own,
        timeout=1200,
    )


WORLDS = {LOOP1: 1, LOOP2: 2, TRL1: 1, TRL2: 2}


def chosen(names: str, layers: str = "") -> list[Mechanism]:
    """Pick mechanisms by a comma-separated list of names or layers; "" is all. Raises ValueError naming the unknown."""
    wanted = [name for name in names.split(",") if name]
    unknown = [name for name in wanted if name not in MECHANISMS and name not in LAYERS]
    if unknown:
        raise ValueError(
            f"unknown mechanism {unknown[0]!r}; known are the layers {', '.join(LAYERS)} and {', '.join(MECHANISMS)}"
        )
    return [row for row in ROWS if not wanted or row.name in wanted or row.layer in wanted]
