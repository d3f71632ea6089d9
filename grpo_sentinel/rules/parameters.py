"""From YAML mapping to typed detector: every parameter checked, with the place in the file when it is wrong.

A detector is a dataclass: its `init` fields are its parameters, their annotations are checked here, and its own
`__post_init__` raises ValueError for what no type can say. A nested detector is a mapping with a `kind`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_type_hints

from grpo_sentinel.rules.detectors import detector_class
from grpo_sentinel.rules.expression import Expression
from grpo_sentinel.rules.view import Detector


class ParameterError(ValueError):
    """What is wrong and where below the rule: `path` is a key path for `config.line_of`."""

    def __init__(self, text: str, path: tuple[int | str, ...] = ()) -> None:
        super().__init__(text)
        self.path = path


def build(spec: Any, label: str = "", path: tuple[int | str, ...] = ("detect",)) -> Detector:
    """Make a fresh detector from its mapping; `label` fills `[*]`. Raises ParameterError."""
    if not isinstance(spec, Mapping):
        raise ParameterError(f"expected a mapping with a kind, got {spec!r}", path)
    kind = spec.get("kind")
    try:
        cls = detector_class(str(kind))
    except KeyError as error:
        raise ParameterError(str(error.args[0]), (*path, "kind")) from None
    known = parameters_of(cls)
    arguments: dict[str, Any] = {}
    for key, value in spec.items():
        if key == "kind":
            continue
        if key not in known:
            raise ParameterError(f"{kind} has no parameter {key}; known are {', '.join(known)}", (*path, key))
        arguments[key] = _coerce(known[key], value, label, (*path, key))
    missing = [name for name, required in _required(cls) if required and name not in arguments]
    if missing:
        raise ParameterError(f"{kind} needs the parameter {missing[0]}", (*path, "kind"))
    try:
        made: Detector = cls(**arguments)
    except ValueError as error:
        raise ParameterError(str(error), path) from None
    return made


@cache
def parameters_of(cls: type) -> dict[str, Any]:
    """Name and type of every parameter of a detector class."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _required(cls: type) -> list[tuple[str, bool]]:
    unset = dataclasses.MISSING
    return [
        (field.name, field.default is unset and field.default_factory is unset)
        for field in dataclasses.fields(cls)
        if field.init
    ]


def _coerce(kind: Any, value: Any, label: str, path: tuple[int | str, ...]) -> Any:
    converter = _CONVERTERS.get(str(kind))
    if converter is None:
        raise TypeError(f"no conversion for {kind}")  # a mistake of ours, not of the file
    return converter(value, label, path)


def _number(value: Any, label: str, path: tuple[int | str, ...]) -> float:
    # YAML 1.1 reads 1e-3 as a string
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParameterError(f"expected a number, got {value!r}", path)
    return float(value)


def _integer(value: Any, label: str, path: tuple[int | str, ...]) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ParameterError(f"expected a whole number >= 0, got {value!r}", path)
    return value


def _flag(value: Any, label: str, path: tuple[int | str, ...]) -> bool:
    if not isinstance(value, bool):
        raise ParameterError(f"expected true or false, got {value!r}", path)
    return value


def _text(value: Any, label: str, path: tuple[int | str, ...]) -> str:
    if not isinstance(value, str):
        raise ParameterError(f"expected text, got {value!r}", path)
    return value


def _expression(value: Any, label: str, path: tuple[int | str, ...]) -> Expression:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ParameterError(f"expected a signal or a number, got {value!r}", path)
    try:
        return Expression(value, label)
    except ValueError as error:
        raise ParameterError(str(error), path) from None


def _expressions(value: Any, label: str, path: tuple[int | str, ...]) -> tuple[Expression, ...]:
    if not isinstance(value, list):
        raise ParameterError(f"expected a list of signals, got {value!r}", path)
    return tuple(_expression(item, label, (*path, i)) for i, item in enumerate(value))


def _texts(value: Any, label: str, path: tuple[int | str, ...]) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ParameterError(f"expected a list of names, got {value!r}", path)
    return tuple(_text(item, label, (*path, i)) for i, item in enumerate(value))


def _detector(value: Any, label: str, path: tuple[int | str, ...]) -> Detector:
    return build(value, label, path)


def _detectors(value: Any, label: str, path: tuple[int | str, ...]) -> tuple[Detector, ...]:
    if not isinstance(value, list) or not value:
        raise ParameterError(f"expected a list of detectors, got {value!r}", path)
    return tuple(build(item, label, (*path, i)) for i, item in enumerate(value))


def _mapping(value: Any, label: str, path: tuple[int | str, ...]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ParameterError(f"expected a mapping, got {value!r}", path)
    return {str(key): item for key, item in value.items()}


def _optional(inner: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value, label, path: None if value is None else inner(value, label, path)


_CONVERTERS: dict[str, Callable[..., Any]] = {
    str(float): _number,
    str(int): _integer,
    str(bool): _flag,
    str(str): _text,
    str(Expression): _expression,
    str(float | None): _optional(_number),
    str(Expression | None): _optional(_expression),
    str(tuple[Expression, ...]): _expressions,
    str(tuple[str, ...]): _texts,
    str(Detector): _detector,
    str(Detector | None): _optional(_detector),
    str(tuple[Detector, ...]): _detectors,
    str(dict[str, Any]): _mapping,
}
