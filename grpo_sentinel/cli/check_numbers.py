"""Numbers that the checks take as options: NaN and infinities are none, though Python reads them as such."""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A finite number, inside its range where it has one."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


SECONDS = Number(min=0, min_open=True)


def in_order(given: tuple[float, float] | None) -> tuple[float | None, float | None]:
    """LOW and HIGH of --reward-range, both None where it was not given. Raises `click.BadParameter`."""
    if given is None:
        return None, None
    low, high = given
    if not low < high or not (math.isfinite(low) and math.isfinite(high)):
        raise click.BadParameter(f"expected finite LOW < HIGH, got {low:g} {high:g}", param_hint="--reward-range")
    return low, high


__all__ = ["SECONDS", "Number", "in_order"]
