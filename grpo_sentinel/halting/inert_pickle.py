"""Reads what a pickle describes without unpickling it: nothing is imported, nothing is called, nothing is built.

    opcodes (pickletools.genops) -> numbers, texts, lists, tuples, and a `Node` wherever a pickle would make an object

`{"a": torch.ones(2)}` becomes Node("dict", pairs=[("a", Node("torch._utils._rebuild_tensor_v2", arguments=[...]))]).
So checkpoints that only unpickling could load can still be judged: which tensors, of what type, in which file.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_BYTES = 512 << 20
MAX_DEPTH = 64
STORED = "<persistent>"  # what the container holds outside the pickle: arguments = the persistent id


@dataclass(slots=True, eq=False)
class Node:
    """An object that the pickle would make: by calling `name` with `arguments`, then filling it."""

    name: str  # "dict", STORED, or module.attribute
    arguments: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)  # items set on it, as in a dict
    state: Any = None  # what __setstate__ would get

    def get(self, key: object) -> Any:
        """Value of the newest item with this key, else of this key in its state; None when there is none."""
        for one, value in reversed(self.pairs):
            if isinstance(one, (str, int)) and one == key:
                return value
        return self.state.get(key) if isinstance(self.state, Node) else None


_PUSH = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_MARK = object()


def read(data: bytes) -> Any:
    """Read one pickle. Raises `ValueError` in one sentence when it is cut short, damaged, or none."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"a pickle of {len(data):,} bytes is too large to read")
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError, UnicodeError) as error:
        raise ValueError(f"its pickle is damaged ({type(error).__name__})") from error
    except ValueError as error:
        raise ValueError(f"its pickle is damaged or cut short: {error}") from error
    raise ValueError("its pickle is cut short")


class _Machine:
    """Stack and memo of the pickle machine, with inert things on them."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        if name in _PUSH:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _STEPS:
            _STEPS[name](self, argument)
        else:
            raise ValueError(f"opcode {name} is not known here")

    def marked(self) -> list[Any]:
        """Take everything above the newest mark."""
        items: list[Any] = []
        while (top := self.stack.pop()) is not _MARK:
            items.append(top)
        return items[::-1]

    def call(self, what: Any, arguments: Any) -> None:
        name = what.name if isinstance(what, Node) else type(what).__name__  # its text may be endless
        self.stack.append(Node(name, list(arguments)))

    def fill(self, items: list[Any]) -> None:
        target = self.stack[-1]
        (target if isinstance(target, list) else target.arguments).extend(items)

    def set_items(self, items: list[Any]) -> None:
        self.stack[-1].pairs.extend(zip(items[::2], items[1::2], strict=True))


def _global(machine: _Machine, argument: Any) -> None:
    module, _, name = str(argument).partition(" ")
    machine.stack.append(Node(f"{module}.{name}"))


def _stack_global(machine: _Machine, _: Any) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise TypeError  # a name made of names doubles with every step
    machine.stack.append(Node(f"{module}.{name}"))


def _call_2(machine: _Machine, _: Any) -> None:
    arguments, what = machine.stack.pop(), machine.stack.pop()
    machine.call(what, arguments)


def _new_extended(machine: _Machine, _: Any) -> None:
    keywords, arguments, what = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    machine.call(what, arguments)
    machine.stack[-1].state = keywords


def _build(machine: _Machine, _: Any) -> None:
    state = machine.stack.pop()
    if isinstance(machine.stack[-1], Node):
        machine.stack[-1].state = state


def _obj(machine: _Machine, _: Any) -> None:
    what, *arguments = machine.marked()
    machine.call(what, arguments)


def _inst(machine: _Machine, argument: Any) -> None:
    arguments = machine.marked()
    _global(machine, argument)
    machine.call(machine.stack.pop(), arguments)


def _persistent(machine: _Machine, _: Any) -> None:
    identity = machine.stack.pop()
    machine.stack.append(Node(STORED, list(identity) if isinstance(identity, (tuple, list)) else [identity]))


def _dict(machine: _Machine, _: Any) -> None:
    items = machine.marked()
    machine.stack.append(Node("dict"))
    machine.set_items(items)


def _set_item(machine: _Machine, _: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.set_items([key, value])


def _tuple(count: int) -> Callable[[_Machine, Any], None]:
    def make(machine: _Machine, _: Any) -> None:
        items = tuple(machine.stack[-count:])
        if len(items) != count or _MARK in items:
            raise IndexError
        del machine.stack[-count:]
        machine.stack.append(items)

    return make


def _put(machine: _Machine, argument: Any) -> None:
    machine.memo[int(argument)] = machine.stack[-1]


def _pop(machine: _Machine, _: Any) -> None:
    machine.stack.pop()


def _pop_mark(machine: _Machine, _: Any) -> None:
    machine.marked()


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "MARK": lambda machine, _: machine.stack.append(_MARK),
    "POP": _pop,
    "POP_MARK": _pop_mark,
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_SET": lambda machine, _: machine.stack.append([]),
    "EMPTY_DICT": lambda machine, _: machine.stack.append(Node("dict")),
    "LIST": lambda machine, _: machine.stack.append(machine.marked()),
    "FROZENSET": lambda machine, _: machine.stack.append(machine.marked()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.marked())),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "DICT": _dict,
    "APPEND": lambda machine, _: machine.fill([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.fill(machine.marked()),
    "ADDITEMS": lambda machine, _: machine.fill(machine.marked()),
    "SETITEM": _set_item,
    "SETITEMS": lambda machine, _: machine.set_items(machine.marked()),
    "PUT": _put,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "MEMOIZE": lambda machine, _: _put(machine, len(machine.memo)),
    "GET": lambda machine, argument: machine.stack.append(machine.memo[int(argument)]),
    "BINGET": lambda machine, argument: machine.stack.append(machine.memo[argument]),
    "LONG_BINGET": lambda machine, argument: machine.stack.append(machine.memo[argument]),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _call_2,
    "NEWOBJ": _call_2,
    "NEWOBJ_EX": _new_extended,
    "BUILD": _build,
    "OBJ": _obj,
    "INST": _inst,
    "PERSID": lambda machine, argument: machine.stack.append(Node(STORED, [argument])),
    "BINPERSID": _persistent,
}


def walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Yield every node with the keys that lead to it, each node once; depth is bounded."""
    seen: set[int] = set()
    waiting: list[tuple[tuple[str, ...], Any]] = [(path, value)]
    while waiting:
        where, one = waiting.pop()
        if id(one) in seen or len(where) > MAX_DEPTH or not isinstance(one, (Node, list, tuple)):
            continue
        seen.add(id(one))
        if isinstance(one, Node):
            yield where, one
        waiting.extend(reversed(_inside(where, one)))


def _inside(where: tuple[str, ...], one: Node | list[Any] | tuple[Any, ...]) -> list[tuple[tuple[str, ...], Any]]:
    if not isinstance(one, Node):
        return [((*where, str(index)), item) for index, item in enumerate(one)]
    inside = [((*where, ""), item) for item in one.arguments]
    inside += [((*where, str(key) if isinstance(key, (str, int)) else ""), item) for key, item in one.pairs]
    inside += [((*where, ""), key) for key, _ in one.pairs if isinstance(key, (Node, tuple))]
    return [*inside, ((*where, ""), one.state)]


__all__ = ["STORED", "Node", "read", "walk"]
