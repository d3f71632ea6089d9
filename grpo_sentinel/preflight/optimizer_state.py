"""What optimizer.pt holds for each parameter (S33, S34): shapes, rates, missing and stale state, not unpickled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_sentinel.halting.inert_pickle import Node
from grpo_sentinel.halting.torch_file import CannotTell, scan_torch_file
from grpo_sentinel.preflight.environment_host import read_json
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import Fault

_FILES = ("optimizer.pt", "optimizer.bin")
_ENDS = ("total_steps", "total_iters", "T_max")  # OneCycleLR; LinearLR and PolynomialLR; CosineAnnealingLR
_MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "sum")
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """Shapes of the moments by the optimizer's own index, and what its groups say."""

    file: str
    held: tuple[int, ...]  # indices of all parameters that the groups hold
    names: Mapping[int, str]  # index -> parameter's name, where the optimizer wrote it
    shapes: Mapping[int, Shape]  # index -> shape of its first moment
    odd: tuple[int, ...]  # indices whose moments have different shapes
    rates: tuple[float, ...]
    nonfinite: Mapping[str, int]


def read_optimizer_state(directory: Path) -> OptimizerState | str:
    """Read a checkpoint's optimizer file; a sentence when there is none, or it cannot be judged."""
    path = next((directory / name for name in _FILES if (directory / name).is_file()), None)
    if path is None:
        return f"optimizer state: there is no {_FILES[0]} in {directory}"
    try:
        with path.open("rb") as file:
            read = scan_torch_file(file, path.name)
    except (CannotTell, ValueError, OSError) as error:
        return f"optimizer state: {path.name}: {error}"
    state, groups = _get(read.tree, "state"), _get(read.tree, "param_groups")
    if not isinstance(state, Node) or not isinstance(groups, list):
        return f"optimizer state: {path.name} is not laid out as torch.optim writes it (sharded, or another library's)"
    shapes: dict[int, Shape] = {}
    odd: list[int] = []
    for index, one in state.pairs:
        if isinstance(index, int) and isinstance(one, Node):
            found = [shape for name in _MOMENTS if (shape := _shape(one.get(name))) is not None]
            if found:
                shapes[index] = found[0]
                odd += [index] if len(set(found)) > 1 else []
    held, names, rates = _groups(groups)
    return OptimizerState(
        file=path.name, held=held, names=names, shapes=shapes, odd=tuple(odd), rates=rates,
        nonfinite=read.report.nonfinite,
    )  # fmt: skip


def _groups(groups: Sequence[Any]) -> tuple[tuple[int, ...], dict[int, str], tuple[float, ...]]:
    held: list[int] = []
    names: dict[int, str] = {}
    rates: list[float] = []
    for group in groups:
        indices, named, rate = (_get(group, key) for key in ("params", "param_names", "lr"))
        own = [one for one in indices if isinstance(one, int)] if isinstance(indices, list) else []
        held += own
        if isinstance(named, list) and len(named) == len(own):
            names.update({index: str(name) for index, name in zip(own, named, strict=True)})
        rates += [float(rate)] if isinstance(rate, (int, float)) else []
    return tuple(held), names, tuple(rates)


def _get(node: Any, key: str) -> Any:
    return node.get(key) if isinstance(node, Node) else None


def _shape(node: Any) -> Shape | None:
    if isinstance(node, Node) and node.name.startswith("torch._utils._rebuild_tensor") and len(node.arguments) > 2:
        shape = node.arguments[2]
        return tuple(int(one) for one in shape) if isinstance(shape, (tuple, list)) else None
    return None


def compare_state(state: OptimizerState, parameters: Mapping[str, Shape], where: str) -> list[Fault]:
    """Compare with the trainable parameters: by name where the optimizer wrote names, else by how often a shape occurs.

    Moments of other shapes than the parameter's are legal for factored optimizers (Adafactor), which keep none here.
    """
    out: list[Fault] = []

    def broken(code: str, message: str, remedy: str, examples: Sequence[str]) -> None:
        out.append(Fault(level=Level.BROKEN, code=code, where=where, message=f"{state.file}: {message}", remedy=remedy,
                         count=len(examples), examples=tuple(examples[:3])))  # fmt: skip

    by_name = len(state.names) == len(state.held) and bool(state.names)
    if by_name:
        held = {state.names[index]: state.shapes.get(index) for index in state.held}
        missing = sorted(name for name in parameters if name not in held)
        stale = sorted(name for name in held if name not in parameters)
        bare = sorted(name for name, shape in held.items() if shape is None and name in parameters)
        wrong = sorted(name for name, shape in held.items()
                       if shape is not None and name in parameters and shape != parameters[name])  # fmt: skip
    else:
        missing, stale, wrong = *_by_shape(state, parameters), []
        bare = [f"number {index}" for index in state.held if index not in state.shapes]
    if missing:
        broken("not-in-optimizer", f"{len(missing)} parameters are not held by the optimizer: they never change",
               "build the optimizer after parameters were added, unfrozen or wrapped", missing)  # fmt: skip
    if stale:
        broken(
            "stale-state",
            f"{len(stale)} states belong to no parameter of this model",
            "adapters were merged, or parameters frozen or replaced, after the optimizer was built",
            stale,
        )
    if wrong or state.odd:
        examples = wrong or [f"number {index}" for index in state.odd]
        broken("state-shape", f"{len(examples)} states have another shape than their parameter",
               "the vocabulary or a layer was resized after the optimizer was built", examples)  # fmt: skip
    if state.shapes and bare:
        broken("no-state", f"{len(bare)} parameters have no moments while others do: they had no gradient yet",
               "see whether the loss reaches them", bare)  # fmt: skip
    if state.nonfinite:
        broken("non-finite-state", f"{len(state.nonfinite)} moments hold NaN or infinite numbers",
               "restart with fresh moments, or from an earlier checkpoint", sorted(state.nonfinite))  # fmt: skip
    return out


def _by_shape(state: OptimizerState, parameters: Mapping[str, Shape]) -> tuple[list[str], list[str]]:
    """Shapes say which: names where the state does not suffice for them, and shapes that nothing has."""
    left = Counter(state.shapes.values())
    unknown = len(state.held) - len(state.shapes)  # held, without moments yet: they may be any of the missing ones
    missing = []
    for name, shape in parameters.items():
        if left[shape] > 0:
            left[shape] -= 1
        elif unknown > 0:
            unknown -= 1
        else:
            missing.append(name)
    stale = [f"{count} of shape {list(shape)}" for shape, count in left.items() if count > 0]
    return missing, stale


def rate_faults(directory: Path, state: OptimizerState, where: str) -> tuple[list[Fault], list[str]]:
    """Compare the optimizer's learning rates with the schedule's last ones (S35); faults, and notes.

    A rate of 0 is what most schedules end with, and a fault before their end.
    """
    faults: list[Fault] = []
    notes: list[str] = []
    schedule = _read_schedule(directory / "scheduler.pt")
    if state.rates and not any(state.rates):
        step, last = _position(directory, schedule)
        if step is not None and last is not None and step >= last:
            notes.append(f"every learning rate is 0: the schedule has ended, at step {step:,} of {last:,}; to train on "
                         "from here, begin a new one")  # fmt: skip
        else:
            faults.append(_zero_rate(state, where, step, last))
    rates = _get(schedule, "_last_lr")
    expected = [float(one) for one in rates if isinstance(one, (int, float))] if isinstance(rates, list) else []
    pairs = list(zip(state.rates, expected, strict=False))
    if pairs and any(abs(a - b) > 1e-6 * max(abs(a), abs(b)) for a, b in pairs):
        faults.append(
            Fault(
                level=Level.BROKEN,
                code="learning-rate",
                where=where,
                message=f"the optimizer's learning rate is {pairs[0][0]:g}, the schedule's {pairs[0][1]:g}",
                remedy="something set it behind the schedule's back, or the schedule steps twice",
            )
        )
    return faults, notes


def _zero_rate(state: OptimizerState, where: str, step: int | None, last: int | None) -> Fault:
    known = step is not None and last is not None
    at = f"at step {step:,} of {last:,}" if known else "and neither trainer_state.json nor the schedule tells its end"
    remedy = "see warm-up and the schedule's number of steps" if known else "if the schedule has ended, begin a new one"
    return Fault(
        level=Level.BROKEN if known else Level.DOUBTFUL, code="learning-rate-zero", where=where,
        message=f"{state.file}: every learning rate is 0: nothing is learned from here, {at}", remedy=remedy,
    )  # fmt: skip


def _read_schedule(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return scan_torch_file(file, path.name).tree
    except (CannotTell, ValueError, OSError):
        return None


def _position(directory: Path, schedule: Any) -> tuple[int | None, int | None]:
    """Step and last step: of trainer_state.json, else of a schedule that knows how long it is."""
    saved = read_json(directory / "trainer_state.json")
    step, last = saved.get("global_step"), saved.get("max_steps")
    if isinstance(step, int) and isinstance(last, int) and last > 0:
        return step, last
    ends = (_get(schedule, name) for name in _ENDS)
    step, last = _get(schedule, "last_epoch"), next((one for one in ends if isinstance(one, int)), None)
    return (step, last) if isinstance(step, int) and last else (None, None)


__all__ = ["OptimizerState", "Shape", "compare_state", "rate_faults", "read_optimizer_state"]
