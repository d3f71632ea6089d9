"""Small arithmetic over signals, as rules write it: `data.token_id_max - data.vocab_size`, `0.9 * memory.x`.

Names, numbers and `+ - * /` between blanks, evaluated from left to right. Nothing is ever executed as code.
A name may end in `[*]`: the rule then runs once per label (reward function, phase, parameter group).
"""

from __future__ import annotations

import math
import re

from grpo_sentinel.rules.view import Get

_NAME = re.compile(r"^[a-z][a-z0-9_]*\.[A-Za-z0-9_.]+(\[[^\]\s]*\])?$")
_OPERATORS = ("+", "-", "*", "/")


class Expression:
    """A parsed quantity. Calling it gives a float, or None when a signal is missing or a division is by zero."""

    __slots__ = ("_gone", "_pair", "_terms", "constant", "names", "single", "text")

    def __init__(self, source: str | float, label: str = "") -> None:
        self.text = _labelled(str(source), label)
        parts = str(source).split()  # a label may hold blanks: names of reward functions are the trainer's
        if not parts or len(parts) % 2 == 0:
            raise ValueError(f"expected a signal, a number or 'a - b' with blanks around the operator, got {source!r}")
        self._terms: list[tuple[str, str | float]] = [("+", _operand(parts[0], source, label))]
        for operator, operand in zip(parts[1::2], parts[2::2], strict=True):
            if operator not in _OPERATORS:
                raise ValueError(f"expected one of + - * / in {source!r}, got {operator!r}")
            self._terms.append((operator, _operand(operand, source, label)))
        self.names: tuple[str, ...] = tuple(term for _, term in self._terms if isinstance(term, str))
        first = self._terms[0][1]
        single = first if len(self._terms) == 1 else None
        self.single: str = single if isinstance(single, str) else ""  # the signal that it is, with nothing around it
        self.constant: float | None = single if isinstance(single, float) else None
        self._gone = f"no value of {self.single}"
        # two signals and one operator, the usual compound, without a loop
        second = self._terms[1] if len(self._terms) == 2 else ("", 0.0)
        self._pair: tuple[str, str, str] | None = None
        if isinstance(first, str) and isinstance(second[1], str):
            self._pair = (first, second[0], second[1])

    def __call__(self, get: Get) -> float | None:
        if self.single:
            return get(self.single)
        if self._pair is not None:
            left, operator, right = self._pair
            a, b = get(left), get(right)
            if a is None or b is None:
                return None
            if operator == "/":
                return a / b if b else None
            return a - b if operator == "-" else a + b if operator == "+" else a * b
        total = 0.0
        for operator, term in self._terms:
            operand = get(term) if isinstance(term, str) else term
            if operand is None:
                return None
            if operator == "+":
                total += operand
            elif operator == "-":
                total -= operand
            elif operator == "*":
                total *= operand
            elif operand == 0:
                return None
            else:
                total /= operand
        return total

    def missing(self, get: Get) -> str:
        """Say in words why the value is None."""
        if self.single:
            return self._gone
        gone = [name for name in self.names if get(name) is None]
        return f"no value of {', '.join(gone)}" if gone else f"{self.text} divides by zero"

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def _labelled(text: str, label: str) -> str:
    return text.replace("[*]", f"[{label}]") if label else text


def _operand(text: str, source: str | float, label: str) -> str | float:
    if _NAME.match(text):
        return _labelled(text, label)
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} in {source!r} is neither a number nor a signal like layer.name") from None
    if math.isnan(number):
        raise ValueError(f"{source!r} compares with NaN, which is never true")
    return number


class Condition:
    """`a >= b`, for gates of a rule; `signal? < 1` counts as met when the signal is missing."""

    __slots__ = ("_left", "_lenient", "_operator", "_right", "names", "text")

    def __init__(self, source: str, label: str = "") -> None:
        self.text = source
        match = re.match(r"^(.*?)\s+(>=|<=|>|<|==|!=)\s+(.*)$", source)
        if match is None:
            raise ValueError(f"expected 'signal >= number' or the like, got {source!r}")
        left, self._operator, right = match.groups()
        self._lenient = left.endswith("?")
        self._left = Expression(left.rstrip("?"), label)
        self._right = Expression(right, label)
        self.names = self._left.names + self._right.names

    def __call__(self, get: Get) -> bool | None:
        """True, False, or None when it cannot be known."""
        left, right = self._left(get), self._right(get)
        if left is None or right is None:
            return True if self._lenient else None
        if self._operator == ">=":
            return left >= right
        if self._operator == "<=":
            return left <= right
        if self._operator == ">":
            return left > right
        if self._operator == "<":
            return left < right
        return (left == right) == (self._operator == "==")

    def blind(self, present: frozenset[str]) -> bool:
        """Can it never be known, by the names of the signals alone?"""
        return not self._lenient and not present.issuperset(self.names)

    def missing(self, get: Get) -> str:
        side = self._left if self._left(get) is None else self._right
        return side.missing(get)
