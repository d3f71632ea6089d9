"""What a fault is: one declarative row, and one armed instance in a training run.

A run (plain loop or TRL) offers *sites*: named places where a function may look at, change or replace what passes.
A mechanism's injector puts functions at sites; they act from the mechanism's first step on, on its rank only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LOOP1, LOOP2, TRL1, TRL2 = "loop1", "loop2", "trl1", "trl2"  # trainer and number of processes
HARD, SEVERE, SUBTLE = "hard", "severe", "subtle"
EVER = 10**9


class Sites:
    """Named places in a training step. `pass_through` hands a value to every function put there, in order."""

    def __init__(self) -> None:
        self.rank = 0
        self.step = 1  # optimizer step that is worked on, 1-based
        self.first_act: int | None = None  # step at which the fault first did something on this rank
        self._functions: dict[str, list[Callable[..., Any]]] = defaultdict(list)

    def put(self, site: str, function: Callable[..., Any]) -> None:
        """Put a function at a site; None as its result keeps the value."""
        self._functions[site].append(function)

    def pass_through(self, site: str, value: Any = None) -> Any:
        """Give `value` after all functions of the site."""
        for function in self._functions[site]:
            result = function(value)
            value = value if result is None else result
        return value


@dataclass
class Fault:
    """A mechanism in one run: knows when and where it acts."""

    mechanism: Mechanism
    run: Any  # loop.Loop or trl_run.TrlRun
    until: int = EVER
    memory: dict[str, Any] = field(default_factory=dict)

    def acts(self) -> bool:
        """Say whether this step of this rank is spoiled, and note the first one."""
        run, row = self.run, self.mechanism
        here = row.rank in (None, run.sites.rank) and row.start <= run.sites.step < row.start + row.lasts
        if here and run.sites.first_act is None:
            run.sites.first_act = run.sites.step
            run.note_fault()
        return here

    @property
    def since(self) -> int:
        """Steps since the first spoiled one: 0, 1, 2, ..."""
        return int(self.run.sites.step - self.mechanism.start)

    def at(self, site: str, change: Callable[..., Any]) -> None:
        """Put `change` at a site, active while the fault acts."""
        self.run.sites.put(site, lambda value: change(value) if self.acts() else None)

    def score(self, change: Callable[[list[float]], Any], function: str = "accuracy") -> None:
        """Change what one reward function returns: `change` gets the scores of the batch."""
        self.at(f"score/{function}", change)

    def on_gradients(self, change: Callable[[Any], Any], only: Callable[[str], bool] = lambda name: True) -> None:
        """Change this rank's own gradients before any all-reduce."""
        for name, parameter in self.run.named_parameters():
            if only(name):
                parameter.register_hook(lambda gradient: change(gradient) if self.acts() else None)


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One way to break a run. `roots`: layers that count as the right root; `rank`: the spoiled rank, None = all."""

    name: str
    layer: str  # group of the table: data, reward, policy, gradient, optimizer, memory
    what: str
    inject: Callable[[Fault], None]
    roots: tuple[str, ...]
    severity: str = SEVERE
    slow: bool = False
    trainers: tuple[str, ...] = (LOOP1,)
    rank: int | None = None
    start: int = 40
    lasts: int = EVER
    steps: int = 80
    config: dict[str, Any] = field(default_factory=dict)  # of the run: beta, iterations, learning_rate, ...
    ends: bool = False  # the process dies of it
    timeout: float = 900.0  # seconds of wall time; what a busy machine may need
    undecidable_rank: bool = False  # two replicas differ in finite values: nobody can say which is right

    def kind_rank(self, trainer: str) -> int | None:
        """Rank that a finding has to name in this trainer; None where there is only one, or all are spoiled."""
        return self.rank if trainer in (LOOP2, TRL2) and not self.undecidable_rank else None


NAN, INF = math.nan, math.inf
