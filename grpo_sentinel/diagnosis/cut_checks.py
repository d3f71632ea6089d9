"""Whether completions that are all cut are long answers or noise, and a policy that writes noise all along.

That everything is cut is a symptom: a limit that is too low gives it, and so does a policy that never ends a sentence,
because its weights were never loaded, were lost on the way to the rollout engine, or are sampled far too hot.
`CUT_CHECKS` is the table.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from grpo_sentinel.diagnosis.found import CUT, ENTROPY, LENGTH, REWARD, finite_points, found, rewards_rise
from grpo_sentinel.diagnosis.verdict import Candidate
from grpo_sentinel.diagnosis.view import LogView
from grpo_sentinel.history.logs.formats import Row

_NOISE = 4.0  # nats; a policy that writes sentences has below 2
_FEW = 5
_LONG = 64  # tokens; a lower limit cuts whatever is written


def cut_or_noise(view: LogView, index: int, row: Row, says: str) -> Candidate:
    """Give the cause of completions that are all cut from a row on."""
    why = _noise(view, index)
    if why is not None:
        return found(view, "noise_written", "policy", 0.7, index, row, f"{says}: {why}")
    return found(view, "all_truncated", "data", 0.65, index, row, says)


def _noise(view: LogView, index: int) -> str | None:
    """What tells that the policy writes noise; None where nothing does."""
    entropies = [p[2] for p in finite_points(view, ENTROPY) if p[0] >= index]
    if entropies and median(entropies) >= _NOISE:
        return f"entropy is {median(entropies):.3g} nats, so what is written is noise"
    fresh = view.hits.get("new_weights")
    if fresh:
        return (
            f"layers of the model were not in its checkpoint (line {fresh[0].line.number}), so what is written is noise"
        )
    before = [p[2] for p in finite_points(view, CUT) if p[0] < index]
    paid = [p[2] for p in finite_points(view, REWARD) if p[0] < index]
    if before and before[-1] < 0.5 and paid and max(paid) > 0 and _at_once(view, index):
        return "none was before, and it came from one row to the next, as when an update destroys the weights"
    return None


def _at_once(view: LogView, index: int) -> bool:
    after = [p[2] for p in finite_points(view, CUT) if p[0] >= index]
    return len(after) >= 2 and min(after) >= 0.99


def noise_all_along(view: LogView) -> Candidate | None:
    """Entropy that is high and flat while nearly everything is cut and no reward rises: sampled far too hot."""
    points, cuts = finite_points(view, ENTROPY), finite_points(view, CUT)
    if len(points) < _FEW or len(cuts) < _FEW or rewards_rise(view):
        return None
    values = [p[2] for p in points]
    middle = median(values)
    lengths = [p[2] for p in finite_points(view, LENGTH)]
    if lengths and median(lengths) < _LONG:
        return None
    if middle < _NOISE or max(values) - min(values) > 0.01 * middle or median(p[2] for p in cuts) < 0.85:
        return None
    index, row, _ = points[0]
    return found(
        view, "noise_written", "policy", 0.7, index, row,
        f"entropy is {middle:.3g} nats in every row, nearly every completion is cut and no reward rises: what is "
        "written is noise",
    )  # fmt: skip


CUT_CHECKS: tuple[Callable[[LogView], Candidate | None], ...] = (noise_all_along,)
