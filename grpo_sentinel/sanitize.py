"""`sanitize_rewards()` (S13): an opt-in repair of rewards that counts what it changed and never acts silently.

Standard library only; tensors are handled by their own methods, so torch is not imported for lists.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

_log = logging.getLogger("grpo_sentinel")
_totals: dict[str, int] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class SanitizeCounts:
    """What was changed of how many: a reward is counted once, under what was wrong with it."""

    total: int = 0
    nan: int = 0
    infinite: int = 0
    low: int = 0  # below the range, raised to it
    high: int = 0  # above the range, lowered to it
    abstained: int = 0  # None, left as it is

    @property
    def changed(self) -> int:
        """Rewards that were replaced or clamped; a rescaling touches all and is not counted here."""
        return self.nan + self.infinite + self.low + self.high

    def __str__(self) -> str:
        shown = [f"{getattr(self, one.name)} {one.name}" for one in fields(self)[1:5] if getattr(self, one.name)]
        return f"{self.changed} of {self.total} rewards" + (f" ({', '.join(shown)})" if shown else "")


@dataclass(frozen=True, slots=True)
class Sanitized:
    """Repaired rewards and the counts; unpacks as `rewards, counts`."""

    rewards: Any
    counts: SanitizeCounts

    def __iter__(self) -> Any:
        return iter((self.rewards, self.counts))


def sanitize_rewards(
    rewards: Any, *, low: float | None = None, high: float | None = None, replacement: float | None = None,
    scale_to: tuple[float, float] | None = None, name: str = "rewards",
) -> Sanitized:  # fmt: skip
    """Replace non-finite rewards, clamp to [low, high], rescale that range to `scale_to`, and count.

    `rewards` is a sequence of B numbers (a list comes back), or a torch tensor of any shape (a new tensor of the same
    dtype and device). NaN and both infinities become `replacement`, by default `low`, else 0: an infinite reward is a
    defect, never a prize. None (an abstention) stays None. Rescaling is x -> a + (x - low) (b - a) / (high - low).

    Under `name`, give the reward function's name, counts add up for the process; where an agent is attached they are
    pushed as `reward.func_sanitized[name]`. The first, tenth, hundredth ... change is logged as a warning.

    Raises `ValueError` when the range is empty or not finite, or `scale_to` is given without a range.
    """
    _require(low, high, replacement, scale_to)
    value = replacement if replacement is not None else low if low is not None else 0.0
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(rewards, torch.Tensor):
        out, counts = _tensor(torch, rewards, low, high, value)
    else:
        out, counts = _sequence(rewards.tolist() if hasattr(rewards, "tolist") else rewards, low, high, value)
    if scale_to is not None and low is not None and high is not None:
        a, factor = scale_to[0], (scale_to[1] - scale_to[0]) / (high - low)
        if isinstance(out, list):
            out = [None if one is None else a + (one - low) * factor for one in out]
        else:
            out = a + (out - low) * factor
    _note(name, counts)
    return Sanitized(out, counts)


def sanitized_totals() -> dict[str, int]:
    """Rewards changed in this process so far, by `name`."""
    with _lock:
        return dict(_totals)


def _require(
    low: float | None, high: float | None, replacement: float | None, scale_to: tuple[float, float] | None
) -> None:
    given = [one for one in (low, high, replacement, *(scale_to or ())) if one is not None]
    if not all(math.isfinite(one) for one in given):
        raise ValueError(f"sanitize_rewards: limits must be finite numbers, got {given}")
    if low is not None and high is not None and not low < high:
        raise ValueError(f"sanitize_rewards: expected low < high, got {low:g} and {high:g}")
    if scale_to is not None and (low is None or high is None):
        raise ValueError("sanitize_rewards: scale_to needs the range it scales from: give low and high")


def _sequence(
    rewards: Sequence[Any], low: float | None, high: float | None, replacement: float
) -> tuple[list[float | None], SanitizeCounts]:
    out: list[float | None] = []
    nan = infinite = below = above = abstained = 0
    for one in rewards:
        number = None if one is None else float(one)
        if number is None:
            abstained += 1
        elif math.isnan(number):
            nan, number = nan + 1, replacement
        elif math.isinf(number):
            infinite, number = infinite + 1, replacement
        elif low is not None and number < low:
            below, number = below + 1, low
        elif high is not None and number > high:
            above, number = above + 1, high
        out.append(number)
    return out, SanitizeCounts(
        total=len(out), nan=nan, infinite=infinite, low=below, high=above, abstained=abstained
    )  # fmt: skip


def _tensor(
    torch: Any, rewards: Any, low: float | None, high: float | None, replacement: float
) -> tuple[Any, SanitizeCounts]:
    """The same on the tensor's own device, with one copy to the host for the counts."""
    given = rewards.detach()
    nan, infinite = torch.isnan(given), torch.isinf(given)
    fine = ~(nan | infinite)
    nothing = torch.zeros_like(nan)
    below = (given < low) & fine if low is not None else nothing
    above = (given > high) & fine if high is not None else nothing
    out = torch.where(fine, given, replacement)
    if low is not None or high is not None:
        out = torch.where(fine, out.clamp(min=low, max=high), out)
    counts = torch.stack([one.sum() for one in (nan, infinite, below, above)]).tolist()
    return out.to(given.dtype), SanitizeCounts(
        total=given.numel(), nan=counts[0], infinite=counts[1], low=counts[2], high=counts[3]
    )  # fmt: skip


def _note(name: str, counts: SanitizeCounts) -> None:
    with _lock:
        before = _totals.get(name, 0)
        after = _totals[name] = before + counts.changed
    if counts.changed and len(str(after)) > len(str(before) if before else ""):
        _log.warning("sanitize_rewards changed %s of %s; %d so far", counts, name, after)


__all__ = ["SanitizeCounts", "Sanitized", "sanitize_rewards", "sanitized_totals"]
