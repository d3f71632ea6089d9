"""What looks wrong in a log and is normal: said in notes, and no candidates."""

from __future__ import annotations

import math

from grpo_sentinel.diagnosis.found import GRAD, LOSS, finite_points
from grpo_sentinel.diagnosis.view import LogView

_ENOUGH = 8  # rows without an overflow behind the last one: the scale is found


def calibrating(view: LogView) -> bool:
    """Tell whether all overflows belong to the normal search for a loss scale, or stand alone."""
    scales = [float(hit.groups["scale"]) for hit in view.hits.get("overflow", ()) if "scale" in hit.groups]
    if any(scale <= 16 for scale in scales):
        return False
    if sum(scale <= 65536 for scale in scales) < 3:
        return True
    return view.rows_after("overflow") >= max(_ENOUGH, len(scales)) and scales == sorted(scales, reverse=True)


def one_nan_loss(view: LogView) -> bool:
    """Tell whether the loss was no number in one row alone, and many rows with numbers follow it."""
    points = view.series(*LOSS)
    bad = [place for place, p in enumerate(points) if not math.isfinite(p[2])]
    return len(bad) == 1 and len(points) - bad[0] > _ENOUGH


def one_nonfinite_gradient(view: LogView) -> bool:
    """Tell whether the gradient norm was no number in one row alone, and many rows with numbers follow it."""
    points = view.series(*GRAD)
    bad = [place for place, p in enumerate(points) if not math.isfinite(p[2])]
    return len(bad) == 1 and len(points) - bad[0] > _ENOUGH


def notes_of(view: LogView) -> list[str]:
    """List what looks wrong in this log and is normal."""
    notes = []
    losses = [p[2] for p in view.series("loss")]
    grads = [p[2] for p in view.series("grad_norm")]
    if losses and all(abs(value) < 1e-6 for value in losses if math.isfinite(value)) and any(g > 0 for g in grads):
        notes.append("a loss of 0.0 beside a gradient above 0 is normal: GRPO on-policy")
    kls = [p[2] for p in view.series("kl")]
    if any(math.isnan(value) for value in kls) and all(math.isfinite(g) for g in grads):
        notes.append("a NaN in kl beside finite gradients is 0/0 in a metric, not a fault")
    if view.hits.get("overflow") and calibrating(view):
        notes.append("loss-scale overflows at the start are the normal search for a scale")
    if one_nan_loss(view) and len(finite_points(view, GRAD)) == len(view.series(*GRAD)):
        notes.append("one loss that is no number between finite ones: that batch was empty or skipped")
    if one_nonfinite_gradient(view):
        notes.append("one gradient norm that is no number between finite ones: that update was skipped or did no harm")
    if "not_destroyed" in view.hits:
        notes.append("'process group has NOT been destroyed' is printed at a normal exit")
    return notes
