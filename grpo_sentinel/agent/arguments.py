"""What the loop hands over, before anything is done with it: used, or said once and left out. Never raised.

    agent.end_step("x")      grpo-sentinel: end_step(step='x'): ...      the step counts on, and the vote is held

Each check gives the value to go on with. A call that fails all the same ends in `fails_open`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
import os
from collections.abc import Callable, Mapping, Set
from typing import Any, Protocol, TypeVar, cast

import torch

from grpo_sentinel.agent.guard import Guard, Unusable
from grpo_sentinel.records import Phase

Method = TypeVar("Method", bound=Callable[..., Any])

_MOST = (1 << 55) - 1  # the largest step that a heartbeat holds


class Guarded(Protocol):
    """Whatever has a guard to fail into."""

    @property
    def guard(self) -> Guard: ...


def nothing() -> Any:
    """Give None: what most methods return."""
    return None


def fails_open(otherwise: Callable[[], Any] = nothing, *, bare: bool = False) -> Callable[[Method], Method]:
    """Keep whatever a public method raises from the loop: said once, counted, and `otherwise()` is returned.

    `bare`: a call that does not fit the signature is made without its arguments, because all ranks count on it.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def kept(self: Guarded, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                if self.guard.strict:
                    raise
                fits = _fits(method, self, args, kwargs)
                if not fits:
                    error = Unusable(
                        f"{method.__name__}{_signature(method)}: {error}; give what stands in the brackets"
                    )
                self.guard.essential(method.__name__, _raise, error)
                if bare and not fits:
                    return kept(self)
                return otherwise()

        return cast(Method, kept)

    return decorate


def shown(value: object) -> str:
    """Describe a value in a few characters, without running code of its own."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if value is None or type(value) in (str, int, float, bool, bytes):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    return f"a {type(value).__name__}"


def step_number(guard: Guard, place: str, value: Any, last: int) -> int:
    """Give `value` as a step of 0 or more; what is none leaves the count at `last`."""
    if not isinstance(value, (bool, str)):
        try:
            found = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
            if 0 <= found <= _MOST:
                return found
        except Exception:  # noqa: BLE001, S110 - objects of others raise what they like
            pass
    guard.refuse(
        place, f"{place}={shown(value)}): no step number, the count stays at {last}; give a whole number, 0 or more"
    )
    return last


def onward(guard: Guard, place: str, step: int, ended: int) -> None:
    """Say when steps go backwards: what compares a step with those before it is wrong then."""
    if step < ended:
        guard.refuse(
            place + " backwards",
            f"{place}={step}): steps go backwards, step {ended} has ended; give the optimizer steps of the whole run, "
            "counted up, or nothing",
        )


def scalar(guard: Guard, place: str, value: Any, remedy: str, *, signed: bool = False) -> Any:
    """Give a number as a float, NaN included, or a tensor of one; None for anything else, and for one below 0.

    The value of a tensor is not looked at: that would wait for its device. `signed`: below 0 is all right.
    """
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and not value.is_complex() and not value.is_meta and value.layout is torch.strided:
            return value.detach().reshape(())
    elif not isinstance(value, (bool, str, bytes)):
        try:
            found = float(value)
            if signed or found >= 0 or math.isnan(found):
                return found
        except Exception:  # noqa: BLE001, S110 - objects of others raise what they like
            pass
    what = "no number" if signed else "no number of 0 or more"
    guard.refuse(place, f"{place}={shown(value)}): {what}, it is left out; {remedy}")
    return None


def named(guard: Guard, place: str, value: Any) -> dict[str, Any]:
    """Give a mapping with string keys as a dict; other keys are left out, and anything else is an empty one."""
    if value is None:
        return {}
    if isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        try:
            return {name: value[name] for name in value.keys() if isinstance(name, str)}  # noqa: SIM118 - not all iterate so
        except Exception:  # noqa: BLE001, S110 - objects of others raise what they like
            pass
    guard.refuse(place, f"{place}={shown(value)}): no mapping of names to values, it is left out; give a dict")
    return {}


def tensors(guard: Guard, method: str, values: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    """Leave out what should be a tensor, as `names` says, and is none."""
    kept = dict(values)
    for name, value in values.items():
        if name not in names or isinstance(value, torch.Tensor):
            continue
        del kept[name]
        if value is not None:
            place = f"{method}({name}"
            guard.refuse(place, f"{place}={shown(value)}): no tensor, it is left out; give a torch.Tensor")
    return kept


def known(guard: Guard, method: str, values: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    """Leave out arguments of a name that nobody knows."""
    for name in sorted(values.keys() - names):
        place = f"{method}({name}"
        guard.refuse(place, f"{place}=...): unknown, it is left out; known are {', '.join(sorted(names))}")
    return {name: value for name, value in values.items() if name in names}


def misspelt(guard: Guard, method: str, values: Mapping[str, Any], names: Set[str]) -> None:
    """Say which names are nearly those of an argument; any other may be the caller's own word."""
    for name in sorted(values.keys() - names):
        near = difflib.get_close_matches(name, sorted(names), 1, cutoff=0.8)
        if near:
            place = f"{method}({name}"
            guard.refuse(place, f"{place}=...): unknown, it is kept as a setting only; did you mean {near[0]}?")


def kind_of(guard: Guard, place: str, value: Any, kind: Any, remedy: str) -> Any:
    """Give `value` where it is of a kind, else None."""
    if value is None or isinstance(value, kind):
        return value
    guard.refuse(place, f"{place}={shown(value)}): it is left out; {remedy}")
    return None


def phase(guard: Guard, place: str, value: Any) -> Phase | None:
    """Give a phase by itself or by its name in any case; None for what is none."""
    if value is None or isinstance(value, Phase):
        return value
    found = Phase.__members__.get(value.upper()) if isinstance(value, str) else None
    if found is None:
        names = ", ".join(name.lower() for name in Phase.__members__)
        guard.refuse(place, f"{place}={shown(value)}): no phase, the time is not told apart; give one of {names}")
    return found


def pairs(guard: Guard, place: str, value: Any) -> list[tuple[str, Any]] | None:
    """Give named parameters as a list; None for what is none."""
    try:
        found = None if value is None else [(name, parameter) for name, parameter in value]
        if found != [] and all(
            isinstance(name, str) and isinstance(parameter, torch.Tensor) for name, parameter in found or ()
        ):
            return found
    except Exception:  # noqa: BLE001, S110 - objects of others raise what they like
        pass
    guard.refuse(place, f"{place}={shown(value)}): no pairs of name and parameter; give model.named_parameters()")
    return None


def place_on_disk(guard: Guard, place: str, value: Any) -> str:
    """Give an absolute path as text, since the sidecar has another working directory; "" for what is none."""
    try:
        if found := os.fsdecode(value):
            return os.path.abspath(found)
    except Exception:  # noqa: BLE001, S110 - objects of others raise what they like
        pass
    guard.refuse(place, f"{place}={shown(value)}): no path, so it cannot be kept or checked; give where it was saved")
    return ""


def text(value: Any) -> str:
    """Give the words of a value, whatever it does when asked for them."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - objects of others raise what they like
        return shown(value)


def _fits(method: Callable[..., Any], self: Any, args: Any, kwargs: Any) -> bool:
    try:
        inspect.signature(method).bind(self, *args, **kwargs)
    except TypeError:
        return False
    return True


def _signature(method: Callable[..., Any]) -> str:
    return f"({', '.join(list(inspect.signature(method).parameters)[1:])})"


def _raise(error: Exception) -> None:
    raise error
