"""Settings out of the Python script that makes a trainer's config. Nothing is run.

Its statements are followed in the order of lines: literals and sums of them, dicts that are made, updated and handed
over as `**settings`, and what is set on the config after it was made. What is computed elsewhere, or changed in a
branch that may not be taken, is not known and left out.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_CONFIGS = ("GRPOConfig", "TrainingArguments", "RLOOConfig")
_SUMS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_DEPTH, _MOST_SETTINGS, _MOST_BITS = 4, 10_000, 64


_Step = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Call


class _Made(dict[str, Any]):
    """The settings of a config that was made: what is set on it later counts, too."""


def python_settings(text: str) -> dict[str, Any]:
    """What the calls of a trainer's config are given in a Python script, as far as it is written there.

    Raises `SyntaxError`, or `ValueError` and `RecursionError` where Python's own parser does.
    """
    script = _Script()
    for node, branch in sorted(_steps(ast.parse(text), 0), key=lambda one: (one[0].lineno, one[0].col_offset)):
        script.follow(node, branch)
    return _within(script.found, _DEPTH, [_MOST_SETTINGS])


def _steps(node: ast.AST, branch: int) -> Iterator[tuple[_Step, int]]:
    """What can change a setting, with the branch that it stands in; 0 is what is always done."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Call)):
        yield node, branch
    for name, part in ast.iter_fields(node):
        inside = branch
        if (isinstance(node, ast.If) and name != "test" and not _is_main(node.test)) or (
            isinstance(node, (ast.ExceptHandler, ast.match_case)) and name == "body"
        ):
            inside = id(part)
        for one in part if isinstance(part, list) else [part]:
            if isinstance(one, ast.AST):
                yield from _steps(one, inside)


def _is_main(test: ast.expr) -> bool:
    """`if __name__ == "__main__"` is no branch."""
    return isinstance(test, ast.Compare) and _name(test.left) == "__name__"


def _within(settings: Mapping[str, Any], depth: int, left: list[int]) -> dict[str, Any]:
    """What is known, without dicts in dicts beyond `depth`, as of one that was put into itself, and `left` in all."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        left[0] -= 1
        if left[0] < 0 or value is None or (isinstance(value, dict) and not depth):
            continue
        out[name] = _within(value, depth - 1, left) if isinstance(value, dict) else value
    return out


class _Script:
    """What is known after the statements so far; None is a value that is not."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._names: dict[str, Any] = {}
        self._born: dict[str, int] = {}  # the branch in which a name got its value
        self._branch = 0

    def follow(self, node: _Step, branch: int) -> None:
        """Take in one statement, or a call wherever it stands."""
        self._branch = branch
        if isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.AugAssign):
            self._grow(node)
        elif node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._assign(target, node.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            known = self._value(value)
            unsure = target.id in self._names and self._may_not_be(target) and self._names[target.id] != known
            self._names[target.id] = None if unsure else known
            self._born.setdefault(target.id, self._branch)
        elif isinstance(target, ast.Subscript):
            settings, key = self._value(target.value), self._value(target.slice)
            if isinstance(settings, dict) and isinstance(key, str):
                self._set(target.value, settings, {key: self._value(value)})
        elif isinstance(target, ast.Attribute):
            settings = self._value(target.value)
            if isinstance(settings, _Made):
                self._set(target.value, settings, {target.attr: self._value(value)})

    def _grow(self, node: ast.AugAssign) -> None:
        """`settings |= {...}`, `steps *= 2`."""
        if isinstance(node.op, ast.BitOr):
            settings, more = self._value(node.target), self._value(node.value)
            if isinstance(settings, dict) and isinstance(more, dict):
                self._set(node.target, settings, more)
        else:
            load = ast.BinOp(left=node.target, op=node.op, right=node.value)
            self._assign(node.target, load)

    def _may_not_be(self, target: ast.expr) -> bool:
        """It is done to something from outside of the branch, which may be left out."""
        while isinstance(target, (ast.Attribute, ast.Subscript)):
            target = target.value
        return self._branch != self._born.get(_name(target), 0) and self._branch != 0

    def _set(self, target: ast.expr, settings: dict[str, Any], more: Mapping[str, Any]) -> None:
        if self._may_not_be(target):
            more = {name: value if settings.get(name) == value else None for name, value in more.items()}
        settings.update(more)
        if isinstance(settings, _Made):
            self.found.update(more)

    def _call(self, node: ast.Call) -> None:
        """A config that is made, or a call that changes a dict or a config."""
        if _name(node.func).endswith(_CONFIGS) or (
            _name(node.func) == "partial" and node.args and _name(node.args[0]).endswith(_CONFIGS)
        ):
            self.found |= {name: value for name, value in self._keywords(node).items() if value is not None}
            return
        if _name(node.func) == "setattr" and len(node.args) == 3:
            settings, key = self._value(node.args[0]), self._value(node.args[1])
            if isinstance(settings, _Made) and isinstance(key, str):
                self._set(node.args[0], settings, {key: self._value(node.args[2])})
        elif _name(node.func) == "replace" and node.args and isinstance(self._value(node.args[0]), _Made):
            self.found.update(self._keywords(node))
        elif isinstance(node.func, ast.Attribute) and node.func.attr in ("update", "setdefault"):
            settings = self._value(node.func.value)
            if isinstance(settings, dict):
                self._change(node.func, settings, node)

    def _change(self, how: ast.Attribute, settings: dict[str, Any], node: ast.Call) -> None:
        if how.attr == "update":
            first = self._value(node.args[0]) if node.args else {}
            self._set(how.value, settings, {**(first if isinstance(first, dict) else {}), **self._keywords(node)})
        elif len(node.args) == 2 and isinstance(key := self._value(node.args[0]), str) and key not in settings:
            self._set(how.value, settings, {key: self._value(node.args[1])})

    def _keywords(self, call: ast.Call) -> dict[str, Any]:
        """What a call is given by name, `**settings` among it."""
        out: dict[str, Any] = {}
        for one in call.keywords:
            value = self._value(one.value)
            out |= {one.arg: value} if one.arg else value if isinstance(value, dict) else {}
        return out

    def _value(self, node: ast.expr) -> Any:
        """A literal, a dict as far as it is one, a sum, or a name for one; None for anything else."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Dict):
            return self._dict(node)
        if isinstance(node, ast.Call):
            return self._made(node)
        if isinstance(node, ast.BinOp):
            return self._sum(node)
        if isinstance(node, ast.Subscript):
            settings, key = self._value(node.value), self._value(node.slice)
            return settings.get(key) if isinstance(settings, dict) and isinstance(key, str) else None
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return None

    def _dict(self, node: ast.Dict) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:  # {**others}
                more = self._value(value)
                out |= more if isinstance(more, dict) else {}
            elif isinstance(name := self._value(key), str):
                out[name] = self._value(value)
        return out

    def _made(self, node: ast.Call) -> dict[str, Any] | None:
        """`GRPOConfig(...)`, `dict(...)`, `settings.copy()`; None for any other call."""
        name = _name(node.func)
        if name.endswith(_CONFIGS):
            return _Made(self._keywords(node))
        if name == "replace" and node.args and isinstance(before := self._value(node.args[0]), _Made):
            return _Made({**before, **self._keywords(node)})
        if name == "dict" and isinstance(node.func, ast.Name):
            first = self._value(node.args[0]) if node.args else {}
            return {**(first if isinstance(first, dict) else {}), **self._keywords(node)}
        if name in ("copy", "deepcopy"):
            of = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else node.func
            settings = self._value(of)
            return type(settings)(settings) if isinstance(settings, dict) else None
        return None

    def _sum(self, node: ast.BinOp) -> Any:
        """Numbers that are added, multiplied and divided, and dicts that are joined."""
        left, right = self._value(node.left), self._value(node.right)
        if isinstance(node.op, ast.BitOr) and isinstance(left, dict) and isinstance(right, dict):
            return {**left, **right}
        if type(node.op) not in _SUMS or not all(type(one) in (int, float) for one in (left, right)):
            return None
        try:
            out = _SUMS[type(node.op)](left, right)
        except (ZeroDivisionError, OverflowError):
            return None
        return out if isinstance(out, float) or out.bit_length() <= _MOST_BITS else None


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


__all__ = ["python_settings"]
