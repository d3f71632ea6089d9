"""Runs a captured step again and compares: `python -m grpo_sentinel.agent.capture.rerun FILE --builder module:name`.

    builder() -> (model, loss_fn)    loss_fn(batch) -> loss of one micro-batch, a scalar that can be differentiated
              -> trainer             its `compute_loss(model, batch)` and `model` are used

    weights of the file (where they fitted) -> random state -> every micro-batch forward and backward -> compare

`grpo-sentinel reproduce` finds the file in a bundle and starts this in a process of its own, for it needs torch.
Exit code 0: the same fault; 1: another outcome; 2: cannot be run again, with the reason.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from grpo_sentinel.agent.capture import rng
from grpo_sentinel.agent.capture.files import read
from grpo_sentinel.agent.capture.trace import AnomalyTrace, first_nan_input
from grpo_sentinel.agent.probes.flat import local, plain_name
from grpo_sentinel.errors import SentinelError

Loss = Callable[[Mapping[str, Any]], torch.Tensor]


class CannotRun(SentinelError):
    """The step cannot be run again; the text says why and what to do."""


@dataclass(slots=True)
class Outcome:
    """What the step gave again, beside what was recorded."""

    step: int
    rank: int
    losses: list[float]
    losses_then: list[float]
    norm: float
    norm_then: float | None
    nonfinite: list[str]
    nonfinite_then: list[str]
    weights: str  # whose weights were used
    restored: list[str]  # random generators that were set
    error: str = ""
    error_then: str = ""
    anomaly: str = ""
    differences: list[str] = field(default_factory=list)


def reproduce(path: Path, builder: str, *, anomaly: bool = False, tolerance: float = 1e-3) -> Outcome:
    """Run the step of a captured file again.

    `tolerance` is relative, for losses and the gradient norm; names of non-finite gradients must agree exactly. Raises
    `CannotRun` when the file lacks what a step needs or the builder does not give it.
    """
    tensors, facts = read(path)
    batches = _batches(tensors, facts)
    model, loss_of = _built(builder, len(batches))
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    used = _load_weights(model, tensors, facts)
    model.train()
    model.zero_grad(set_to_none=True)
    trace = AnomalyTrace() if anomaly else None
    moved = [_move(batch, device) for batch in batches]
    restored = rng.restore(_part(tensors, "rng/before/"))
    losses, error = _run(moved, loss_of, trace)
    named = [(plain_name(name), local(p.grad)) for name, p in model.named_parameters() if p.grad is not None]
    bad = [name for name, gradient in named if not bool(torch.isfinite(gradient).all())]
    outcome = Outcome(
        step=int(facts["step"]), rank=int(facts["rank"]), losses=losses,
        losses_then=[float(loss) for loss, _ in facts.get("losses", [])],
        norm=_norm([gradient for _, gradient in named]),
        norm_then=_norm_then(facts),
        nonfinite=bad, nonfinite_then=list(facts.get("nonfinite_gradients", [])), weights=used, restored=restored,
        error=error, error_then=str(facts.get("error", "")),
    )  # fmt: skip
    if trace is not None:
        came = next((f"{name} of micro-batch {n} holds NaN before the forward"
                     for n, batch in enumerate(moved) if (name := first_nan_input(batch))), "")  # fmt: skip
        told = trace.found.told() if trace.found is not None else "no operation made a NaN"
        outcome.anomaly = came or told
    outcome.differences = _differences(outcome, tolerance)
    return outcome


def _batches(tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    count = int(facts.get("micro_batches", 0))
    left_out = facts.get("left_out", {})
    if str(facts.get("what")) != "capture" or not count:
        why = left_out.get("batch", "the capture holds none")
        raise CannotRun(f"there is no batch to run again: {why}; ask for one with `grpo-sentinel capture`")
    hidden = [name for name, why in left_out.items() if name.startswith("batch/") and "token ids" in why]
    if hidden:
        raise CannotRun(
            f"{hidden[0]} was not kept ({left_out[hidden[0]]}); set incidents.samples to full to be able to run a "
            "step again"
        )
    if "batch" in left_out:
        raise CannotRun(f"the batch is not whole: {left_out['batch']}; ask for one with `grpo-sentinel capture`")
    numbers = facts.get("numbers", {})
    return [{**_part(tensors, f"batch/{micro}/"), **numbers.get(str(micro), {})} for micro in range(count)]


def _built(place: str, micro_batches: int) -> tuple[torch.nn.Module, Loss]:
    module, _, name = place.partition(":")
    if not name:
        raise CannotRun(f"--builder {place}: expected module:function, as train:build")
    sys.path.insert(0, "")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise CannotRun(f"--builder {place} cannot be loaded ({error}); run in the folder of the module") from error
    try:
        made = function()
    except Exception as error:
        raise CannotRun(f"--builder {place} failed: {type(error).__name__}: {error}"[:500]) from error
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module) and callable(made[1]):
        return made
    model = getattr(made, "model", None)
    if isinstance(model, torch.nn.Module) and hasattr(made, "compute_loss"):
        if not hasattr(made, "current_gradient_accumulation_steps"):
            made.current_gradient_accumulation_steps = micro_batches  # transformers sets it when it trains
        return model, lambda batch: _scalar(made.compute_loss(model, dict(batch)))
    raise CannotRun(f"--builder {place} gave {type(made).__name__}; expected (model, loss_fn) or a trainer")


def _scalar(loss: Any) -> torch.Tensor:
    found: torch.Tensor = loss[0] if isinstance(loss, tuple) else loss
    return found


def _run(batches: Sequence[Mapping[str, Any]], loss_of: Loss, trace: AnomalyTrace | None) -> tuple[list[float], str]:
    losses: list[float] = []
    if trace is not None:
        trace.start()
    try:
        for batch in batches:
            loss = loss_of(batch)
            losses.append(float(loss.detach()))
            loss.backward()
    except Exception as error:  # noqa: BLE001 - the captured step may have ended in one
        return losses, f"{type(error).__name__}: {error}"[:500]
    finally:
        if trace is not None:
            trace.stop()
    return losses, ""


def _load_weights(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> str:
    saved = _part(tensors, "weight/")
    if not saved:
        return "the builder's"
    used = "the captured ones" + (", of after that step's update" if facts.get("updated") else "")
    with torch.no_grad():
        named = {plain_name(name): local(parameter) for name, parameter in model.named_parameters()}
        lost = [name for name, weight in saved.items() if name not in named or named[name].shape != weight.shape]
        if lost and int(facts.get("world", 1)) > 1:
            return "the builder's, for the captured ones are shards of one rank"
        if lost:
            raise CannotRun(f"the builder's model has no {lost[0]} of shape {list(saved[lost[0]].shape)} as captured")
        for name, weight in saved.items():
            named[name].copy_(weight)
    return used


def _part(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _move(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in batch.items()}


def _norm_then(facts: Mapping[str, Any]) -> float | None:
    """The recorded norm; None where one rank cannot give it again: a mean over ranks, or weights of after the step."""
    norm = facts.get("norm_preclip")
    return None if norm is None or facts.get("updated") or int(facts.get("world", 1)) > 1 else float(norm)


def _norm(gradients: Sequence[torch.Tensor]) -> float:
    squares = [float(torch.linalg.vector_norm(g.detach().double())) ** 2 for g in gradients if g.numel()]
    return math.sqrt(sum(squares)) if all(map(math.isfinite, squares)) else math.nan


def _differences(outcome: Outcome, tolerance: float) -> list[str]:
    """Say what is not as it was."""
    found = []
    if bool(outcome.error) != bool(outcome.error_then):
        found.append(f"then {outcome.error_then or 'no exception'}, now {outcome.error or 'no exception'}")
    if outcome.error and outcome.error_then:
        kinds = [text.partition(":")[0] for text in (outcome.error_then, outcome.error)]
        return found if kinds[0] == kinds[1] else [f"then {kinds[0]}, now {kinds[1]}"]
    for micro, (then, now) in enumerate(zip(outcome.losses_then, outcome.losses, strict=False)):
        if not _close(then, now, tolerance):
            found.append(f"loss of micro-batch {micro}: then {then:g}, now {now:g}")
    before, after = set(outcome.nonfinite_then), set(outcome.nonfinite)
    if sorted(outcome.nonfinite_then) != sorted(outcome.nonfinite[: max(64, len(outcome.nonfinite_then))]):
        lost, new = sorted(before - after), sorted(after - before)
        text = [f"{len(lost)} no longer non-finite, as {lost[0]}"] if lost else []
        text += [f"{len(new)} non-finite that were not, as {new[0]}"] if new else []
        found.append(f"gradients: {', '.join(text)}")
    scaled = (outcome.norm, outcome.norm / max(1, len(outcome.losses)))  # trainers may divide for accumulation later
    if outcome.norm_then is not None and not any(_close(outcome.norm_then, norm, tolerance) for norm in scaled):
        found.append(f"gradient norm: then {outcome.norm_then:g}, now {outcome.norm:g}")
    return found


def _close(then: float, now: float, tolerance: float) -> bool:
    if not math.isfinite(then) or not math.isfinite(now):
        return not math.isfinite(then) and not math.isfinite(now)
    return abs(then - now) <= tolerance * max(abs(then), abs(now), 1e-12)


def _print(outcome: Outcome, out: Any) -> None:
    def line(name: str, then: object, now: object) -> None:
        out.write(f"{name:22} then {then!s:28} now {now}\n")

    out.write(f"step {outcome.step} of rank {outcome.rank}; weights: {outcome.weights}")
    out.write(f"; random state of {', '.join(outcome.restored)}\n" if outcome.restored else "\n")
    for micro, now in enumerate(outcome.losses):
        then = outcome.losses_then[micro] if micro < len(outcome.losses_then) else "not recorded"
        line(f"loss {micro}", then, now)
    line("gradient norm", "not recorded" if outcome.norm_then is None else outcome.norm_then, outcome.norm)
    line("non-finite gradients", len(outcome.nonfinite_then), len(outcome.nonfinite))
    if outcome.error or outcome.error_then:
        line("exception", outcome.error_then or "none", outcome.error or "none")
    if outcome.anomaly:
        out.write(f"first NaN: {outcome.anomaly}\n")
    out.write("reproduced\n" if not outcome.differences else f"not reproduced: {'; '.join(outcome.differences)}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one captured step again and print the comparison; gives the exit code."""
    parser = argparse.ArgumentParser(prog="rerun", description="Run a captured step again.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--builder", required=True)
    parser.add_argument("--anomaly", action="store_true")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        outcome = reproduce(given.file, given.builder, anomaly=given.anomaly, tolerance=given.tolerance)
    except SentinelError as error:
        sys.stderr.write(f"grpo-sentinel: {error}\n")
        return 2
    except Exception as error:  # noqa: BLE001 - 1 means another outcome, and this is none
        sys.stderr.write(f"grpo-sentinel: the step could not be run again: {type(error).__name__}: {error}\n")
        return 2
    if given.json:
        body = {name: _plain(getattr(outcome, name)) for name in Outcome.__slots__}
        sys.stdout.write(json.dumps({**body, "reproduced": not outcome.differences}) + "\n")
    else:
        _print(outcome, sys.stdout)
    return 1 if outcome.differences else 0


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
