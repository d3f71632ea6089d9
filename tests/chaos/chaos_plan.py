"""What is done to which rank of which trainer, and when: a series drawn from one seed, so that any run can be repeated.

fault x rank x moment x step x trainer        no run depends on another; the first N are the same for every N
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LOOP, TRL = "loop", "trl"

KILL, STOP, HANG, REWARD = "kill", "stop", "hang_collective", "hang_reward"
RAISE, NAN, MEMORY, DISK, DAEMON = "exception", "nan", "memory_limit", "full_disk", "daemon_killed"
FAULTS = (KILL, STOP, HANG, REWARD, RAISE, NAN, MEMORY, DISK, DAEMON)

MOMENTS = ("generate", "reward", "forward", "backward", "optimizer", "save")
TRL_EVERY = 4
"""Every so manieth run is TRL's own trainer, the others a plain DistributedDataParallel loop."""

HANGS = frozenset({STOP, HANG, REWARD})
GRAVE = frozenset(FAULTS) - {DAEMON}
"""Faults that an incident bundle has to tell of."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run."""

    number: int
    trainer: str
    fault: str
    rank: int
    moment: str
    step: int  # at which the fault acts, 1-based
    halting: bool = False  # a person asks for checkpoint-and-halt when this step begins, or the one before

    @property
    def name(self) -> str:
        name = f"{self.number:03d}-{self.trainer}-{self.fault}-rank{self.rank}-{self.moment}-step{self.step}"
        return f"{name}-halting" if self.halting else name

    @property
    def culprit(self) -> int | None:
        """The rank that a finding has to name; None where nobody outside can know it, or no rank is to blame.

        Not known: a rank that waits in a collective of its own in a phase in which the other waits for it too. That is
        backward under DDP, and forward where the model has buffers, which DDP broadcasts there. Both stand in a
        collective of the same phase and neither moves; only their stacks differ. Nor whose gradient was NaN where the
        run is halted at that very step: the hooks that see it are armed by the first one.
        """
        if self.fault == DAEMON or (self.fault == NAN and self.halting):
            return None
        if self.fault == HANG and (self.trainer, self.moment) in ((LOOP, "backward"), (TRL, "forward")):
            return None
        return self.rank


def draw(count: int, seed: int = 5, *, halting: bool = False) -> list[Case]:
    """Draw the first `count` runs of a series: faults in turn, all else at random; `halting`: each in a halt."""
    chance = random.Random(seed)
    cases = []
    bag: list[str] = []
    for number in range(count):
        if not bag:
            bag = list(FAULTS)
            chance.shuffle(bag)
        fault, rank, moment = bag.pop(), chance.randrange(2), chance.choice(MOMENTS)
        step = chance.randint(5, 14)
        if fault == DISK:
            rank, moment = 0, "save"  # the rank that saves
        elif fault == REWARD:
            moment = "reward"
        elif fault == NAN:
            moment = "backward"
        elif fault == HANG and moment in ("save", "optimizer", "reward"):
            moment = chance.choice(("generate", "forward", "backward"))
        if moment == "save":
            rank, step = 0, step - step % 2 + 2  # saves come at every second step
        trainer = TRL if number % TRL_EVERY == 1 else LOOP
        cases.append(
            Case(number=number, trainer=trainer, fault=fault, rank=rank, moment=moment, step=step, halting=halting)
        )
    return cases
