"""`snapshot compare`: two snapshots of the same samples, within what their dtype can hold, first difference first.

Order of the comparison is that of cause: samples, weights, activations in forward order, log-probs, rewards, loss,
gradients from the loss backwards. The first that differs is the one to look at.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import CheckReport, Fault
from grpo_sentinel.preflight.snapshot import LayerState, Snapshot

RELATIVE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Of a norm or a loss, relative; of a log-prob or a reward, absolute in nats or points. Other kernels, batch shapes and
thread counts sum in another order; a bug moves numbers far more."""


@dataclass(slots=True)
class _Comparison:
    before: Snapshot
    after: Snapshot
    tolerance: float
    faults: list[Fault] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    not_seen: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    def differs(self, code: str, subject: str, message: str, remedy: str, examples: Sequence[str] = ()) -> None:
        self.faults.append(
            Fault(level=Level.BROKEN, code=code, where=self.after.source, subject=subject, message=message,
                  remedy=remedy, count=max(1, len(examples)), examples=tuple(examples[:3]))
        )  # fmt: skip

    def close(self, a: float, b: float, *, relative: bool) -> bool:
        """NaN is close to NaN: the same defect twice is no difference."""
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return a == b or abs(a - b) <= self.tolerance * (max(abs(a), abs(b)) if relative else max(1.0, abs(a)))


def compare(
    before: Snapshot, after: Snapshot, tolerance: float | None = None, *, other_samples: bool = False
) -> CheckReport:  # fmt: skip
    """Compare two snapshots; the tolerance is that of the coarser dtype unless given.

    `other_samples`: go on although the samples are not the same, as with two steps of one run.
    """
    began = time.monotonic()
    coarser = max(RELATIVE.get(one.dtype, RELATIVE["float32"]) for one in (before, after))
    check = _Comparison(before, after, coarser if tolerance is None else tolerance)
    if _samples(check, other_samples):
        for part in (_weights, _activations, _log_probs, _rewards, _loss, _gradients):
            part(check)
    _attached(check)
    _versions(check)
    if check.faults:
        check.facts["first_difference"] = {"code": check.faults[0].code, "where": check.faults[0].subject}
    check.facts["tolerance"] = check.tolerance
    return CheckReport(
        kind="snapshot", subject=f"{before.source} against {after.source}", looked_at=tuple(check.same),
        not_seen=tuple(check.not_seen), faults=tuple(check.faults), notes=tuple(check.notes), facts=check.facts,
        seconds=time.monotonic() - began,
    )  # fmt: skip


def _samples(check: _Comparison, other: bool) -> bool:
    if check.before.samples.digest == check.after.samples.digest:
        check.same.append(f"samples: the same {check.before.samples.count}")
        return True
    if other:
        check.notes.append("samples differ: what follows may come from them alone")
        return True
    check.faults.append(
        Fault(level=Level.CANNOT_TELL, code="other-samples", where=check.after.source, subject="samples",
              message="the two were made on other samples: nothing else can be compared",
              remedy="save the second with --like FIRST.json, or with the same data, seed and tokenizer")
    )  # fmt: skip
    return False


def _attached(check: _Comparison) -> None:
    """What keeps a graph that no backward needs (S31): a fault where the first did not, else a note."""
    before, after = check.before.attached, check.after.attached
    if after is None:
        check.not_seen.append("whether reward and reference passes keep a graph: only a trainer's or loop's step tells")
        return
    check.same.append("what should carry no autograd graph")
    new = sorted(set(after) - set(before or ()))
    if new and before is not None:
        check.differs("keeps-graph", new[0], f"{', '.join(new)}: an autograd graph is kept that no backward needs",
                      "run reward and reference passes inside torch.no_grad()", new)  # fmt: skip
    elif after:
        check.notes.append(f"an autograd graph is kept that no backward needs: {', '.join(after)}")


def _layers(check: _Comparison) -> list[tuple[LayerState, LayerState]]:
    after = {one.name: one for one in check.after.layers}
    return [(one, after[one.name]) for one in check.before.layers if one.name in after]


def _weights(check: _Comparison) -> None:
    """Other weights are no fault (that may be the fix): a note, and the reason for what follows."""
    names = [{one.name for one in side.layers} for side in (check.before, check.after)]
    odd = sorted(names[0] ^ names[1])
    if odd:
        check.differs("other-layers", odd[0], f"{len(odd)} layers are in one of them only, first {odd[0]}",
                      "another architecture, or adapters in one of them", odd)  # fmt: skip
    pairs = [(a, b) for a, b in _layers(check) if a.weights and b.weights]
    changed = [a.name for a, b in pairs if a.weights != b.weights]
    if changed:
        check.notes.append(f"weights differ in {len(changed)} of {len(pairs)} layers, first {changed[0]}")
        check.facts["first_other_weights"] = changed[0]
    elif pairs:
        check.same.append(f"weights: byte for byte in {len(pairs)} layers")
    else:
        check.not_seen.append("weights: not in both")


def _activations(check: _Comparison) -> None:
    pairs = [(a, b) for a, b in _layers(check) if a.activation is not None and b.activation is not None]
    wrong = [
        (a.name, a.activation, b.activation) for a, b in pairs
        if not check.close(a.activation or 0.0, b.activation or 0.0, relative=True)
    ]  # fmt: skip
    _told(check, "activation", "activations", pairs, wrong, "this layer computes something else, or its input's mask")


def _gradients(check: _Comparison) -> None:
    pairs = [(a, b) for a, b in reversed(_layers(check)) if a.gradient is not None and b.gradient is not None]
    largest = max((abs(a.gradient or 0.0) for a, _ in pairs if math.isfinite(a.gradient or 0.0)), default=0.0)
    wrong = [
        (a.name, a.gradient, b.gradient) for a, b in pairs
        if not check.close(a.gradient or 0.0, b.gradient or 0.0, relative=True)
        and not abs((a.gradient or 0.0) - (b.gradient or 0.0)) <= check.tolerance * largest * 1e-2
    ]  # fmt: skip
    _told(check, "gradient", "gradient norms", pairs, wrong, "its backward changed: dtype, kernel, freezing, scaling")


def _told(
    check: _Comparison, code: str, what: str, pairs: Sequence[object],
    wrong: Sequence[tuple[str, float | None, float | None]], remedy: str,
) -> None:  # fmt: skip
    if not pairs:
        check.not_seen.append(f"{what} by layer: not in both")
    elif wrong:
        name, a, b = wrong[0]
        way = "from the loss backwards" if code == "gradient" else "in forward order"
        check.differs(
            code,
            name,
            f"{what} differ in {len(wrong)} of {len(pairs)} layers, first ({way}) {name}: "
            f"{a or 0:.6g} and {b or 0:.6g}",
            remedy,
            [f"{n}: {x or 0:.6g} and {y or 0:.6g}" for n, x, y in wrong],
        )
    else:
        check.same.append(f"{what}: {len(pairs)} layers")


def _log_probs(check: _Comparison) -> None:
    a, b = check.before.log_probs, check.after.log_probs
    if a is None or b is None:
        check.not_seen.append("log-probs: not in both")
        return
    if [len(row) for row in a] != [len(row) for row in b]:
        check.differs("log-probs", "log-probs", "the two hold log-probs of other numbers of tokens", "see the masks")
        return
    wrong = [
        (row, place, x, y)
        for row, (one, other) in enumerate(zip(a, b, strict=True))
        for place, (x, y) in enumerate(zip(one, other, strict=True))
        if not check.close(x, y, relative=False)
    ]
    total = sum(len(row) for row in a)
    if wrong:
        row, place, x, y = wrong[0]
        check.differs("log-probs", "log-probs", f"{len(wrong):,} of {total:,} log-probs differ, sample {row}, "
                      f"token {place}: {x:.6g} and {y:.6g}", "weights, dtype, mask or positions",
                      [f"sample {r}, token {p}: {u:.6g} and {v:.6g}" for r, p, u, v in wrong[:3]])  # fmt: skip
    else:
        check.same.append(f"log-probs: {total:,} tokens")


def _rewards(check: _Comparison) -> None:
    a, b = check.before.rewards, check.after.rewards
    if a is None or b is None:
        check.not_seen.append("rewards: not in both")
    elif len(a) != len(b):
        check.differs("rewards", "rewards", f"{len(a)} rewards and {len(b)}", "see the reward functions")
    else:
        wrong = [(i, x, y) for i, (x, y) in enumerate(zip(a, b, strict=True)) if not check.close(x, y, relative=False)]
        if wrong:
            check.differs(
                "rewards",
                "rewards",
                f"{len(wrong)} of {len(a)} rewards differ, first of sample {wrong[0][0]}: "
                f"{wrong[0][1]:.6g} and {wrong[0][2]:.6g}",
                "see check reward: is it deterministic?",
            )
        else:
            check.same.append(f"rewards: {len(a)}")


def _loss(check: _Comparison) -> None:
    a, b = check.before.loss, check.after.loss
    if a is None or b is None:
        check.not_seen.append("loss: not in both")
    elif not check.close(a, b, relative=False):
        check.differs(
            "loss", "loss", f"the loss is {a:.6g} and {b:.6g}", "see what differs before it, or its own terms"
        )
    else:
        check.same.append(f"loss: {a:.6g}")


def _versions(check: _Comparison) -> None:
    a, b = check.before.versions, check.after.versions
    other = [f"{name} {a.get(name, 'none')} and {b.get(name, 'none')}" for name in sorted({*a, *b})
             if a.get(name) != b.get(name)]  # fmt: skip
    if other:
        check.notes.append(f"versions differ: {', '.join(other)}")
    for name in ("dtype", "seed"):
        x, y = getattr(check.before, name), getattr(check.after, name)
        if x != y:
            check.notes.append(f"{name} differs: {x} and {y}")


__all__ = ["RELATIVE", "compare"]
