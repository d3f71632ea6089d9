"""Makes a candidate of one row, and names the fields that several checks look at."""

from __future__ import annotations

from dataclasses import replace

from grpo_sentinel.diagnosis.verdict import Candidate, Evidence
from grpo_sentinel.diagnosis.view import LogView, rank_of
from grpo_sentinel.history.logs.formats import Row

Point = tuple[int, Row, float]
GRAD = ("grad_norm", "actor/grad_norm", "gradient.norm_preclip")
LOSS = ("loss", "lm loss", "policy.loss", "policy.pg_loss")
STD = ("reward_std", "reward.group_std_mean")


def found(
    view: LogView,
    name: str,
    layer: str,
    confidence: float,
    index: int,
    row: Row,
    says: str,
    *,
    role: str = "cause",
) -> Candidate:
    shown = ", ".join(f"{key}={value}" for key, value in list(row.raw.items())[:12])
    where = row.step if row.step is not None else _step_of(view, index)
    return Candidate(
        name=name,
        layer=layer,
        role=role,
        confidence=confidence,
        says=says,
        step=where,
        rank=row.rank if row.rank is not None else rank_of("", row.source),
        at=row.line / max(view.lines, 1),
        evidence=(Evidence(source=row.source, line=row.line, text=shown[:300]),),
    )


def _step_of(view: LogView, index: int) -> int | None:
    """Guess the step of a row without one from its place, where the log began at the first step."""
    if view.rows_seen > len(view.rows):
        return None  # rows were forgotten between
    return index + 1 if all(row.step is None for row in view.rows[: index + 1]) else None


def with_step(candidate: Candidate, step: int | None) -> Candidate:

    return replace(candidate, step=step if step is not None else candidate.step)
