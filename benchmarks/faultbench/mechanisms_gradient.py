"""Gradient faults: between the loss and the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.faultbench.fault import HARD, INF, LOOP1, LOOP2, NAN, SUBTLE, TRL1, TRL2, Fault, Mechanism


def _element(value: float) -> Callable[[Fault], None]:
    """One element of one parameter's own gradient, before the all-reduce."""

    def inject(fault: Fault) -> None:
        name = fault.run.named_parameters()[3][0]

        def change(gradient: Any) -> Any:
            gradient = gradient.clone()
            gradient.view(-1)[0] = value
            return gradient

        fault.on_gradients(change, lambda other: other == name)

    return inject


def _after_reduce(value: float) -> Callable[[Fault], None]:
    def inject(fault: Fault) -> None:
        def change(named: Any) -> None:
            named[3][1].grad.view(-1)[0] = value

        fault.at("gradients", change)

    return inject


def _times(
    factor: Callable[[Fault], float], only: Callable[[str], bool] = lambda name: True
) -> Callable[[Fault], None]:
    def inject(fault: Fault) -> None:
        fault.on_gradients(lambda gradient: gradient * factor(fault), only)

    return inject


def _noise(fault: Fault) -> None:
    def add(gradient: Any) -> Any:
        import torch

        return gradient + 0.5 * torch.randn_like(gradient)

    fault.on_gradients(add)


def _not_reduced(fault: Fault) -> None:
    """The all-reduce is skipped: every rank steps with its own gradient."""
    original = fault.run.loss

    def alone(batch: Any) -> Any:
        if not fault.acts():
            return original(batch)
        model, fault.run.model = fault.run.model, fault.run.policy
        try:
            return original(batch)
        finally:
            fault.run.model = model

    fault.run.loss = alone


def _not_zeroed(fault: Fault) -> None:
    original = fault.run.zero_grad
    fault.run.zero_grad = lambda: None if fault.acts() else original()


def _detached(fault: Fault) -> None:
    """Most layers are cut off the graph."""

    def freeze(_: Any) -> None:
        for name, parameter in fault.run.policy.named_parameters():
            if "layers" in name:
                parameter.requires_grad_(False)
                parameter.grad = None

    fault.at("step", freeze)


def _spoil_update(fault: Fault) -> None:
    """Clipping is lost: what reaches the optimizer is a hundred times larger than the limit allows."""
    original = fault.run.clip

    def clip() -> Any:
        norm = original()
        if fault.acts():
            for _, parameter in fault.run.named_parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(100.0)
        return norm

    fault.run.clip = clip


def _lost(fault: Fault) -> None:
    """Gradients vanish between backward and optimizer: zeroed once too often."""

    def drop(named: Any) -> None:
        for _, parameter in named:
            if parameter.grad is not None:
                parameter.grad.zero_()

    fault.at("gradients", drop)


ROWS = [
    Mechanism(name="gradient_nan_one_rank", layer="gradient", what="NaN in one element on rank 1, before the all-reduce", severity=HARD,
              inject=_element(NAN), roots=("gradient",), trainers=(LOOP2, TRL1, TRL2), rank=1, start=20, steps=30),
    Mechanism(name="gradient_inf_one_rank", layer="gradient", what="infinity in one element on rank 1", severity=HARD,
              inject=_element(INF), roots=("gradient",), trainers=(LOOP2, TRL1), rank=1, start=20, steps=30),
    Mechanism(name="gradient_nan_after_reduce", layer="gradient", what="NaN on rank 1 after the all-reduce, once", severity=HARD,
              inject=_after_reduce(NAN), roots=("gradient",), trainers=(LOOP2,), rank=1, start=20, lasts=1, steps=40),
    Mechanism(name="gradient_nan_once", layer="gradient", what="NaN in one element, in one step only", severity=HARD,
              inject=_element(NAN), roots=("gradient",), trainers=(LOOP1,), start=20, lasts=1, steps=40),
    Mechanism(name="norm_overflows", layer="gradient", what="finite elements of 1e30: the norm is infinite", severity=HARD,
              inject=_element(1e30), roots=("gradient",), trainers=(LOOP1,), start=20, lasts=1, steps=40),
    Mechanism(name="spike_once", layer="gradient", what="all gradients 1000 times too large, one step", inject=_times(lambda f: 1000.0),
              roots=("gradient",), trainers=(LOOP1, TRL1), start=40, lasts=1, steps=60),
    Mechanism(name="spike_persists", layer="gradient", what="all gradients 200 times too large from now on", inject=_times(lambda f: 200.0),
              roots=("gradient",), trainers=(LOOP2, TRL2), steps=60),
    Mechanism(name="gradients_zero", layer="gradient", what="gradients are zeroed once too often", inject=_lost, roots=("gradient",),
              trainers=(LOOP1, TRL1), start=20, steps=50),
    Mechanism(name="gradients_vanish", layer="gradient", what="gradients shrink by 30 percent a step", inject=_times(lambda f: 0.7**f.since),
              roots=("gradient",), slow=True, steps=100),
    Mechanism(name="one_layer_zero", layer="gradient", what="the first block's gradients are exactly zero", severity=SUBTLE,
              inject=_times(lambda f: 0.0, lambda name: "layers.0" in name), roots=("gradient",), steps=90),
    Mechanism(name="layers_cut_off", layer="gradient", what="both blocks are cut off the graph", inject=_detached,
              roots=("gradient", "optimizer"), steps=70),
    Mechanism(name="gradients_grow", layer="gradient", what="gradients grow by 15 percent a step", inject=_times(lambda f: 1.15 ** min(f.since, 80)),
              roots=("gradient",), slow=True, steps=120),
    Mechanism(name="clipping_lost", layer="gradient", what="gradients 100 times too large after clipping", inject=_spoil_update,
              roots=("gradient", "optimizer"), severity=SUBTLE, steps=80),
    Mechanism(name="noise_on_one_rank", layer="gradient", what="strong noise on the gradients of rank 1", inject=_noise,
              roots=("gradient",), trainers=(LOOP2,), rank=1, steps=70),
    Mechanism(name="one_rank_50_fold", layer="gradient", what="rank 1 forgets to divide its loss: 50 times its share",
              inject=_times(lambda f: 50.0), roots=("gradient",), trainers=(LOOP2,), rank=1, steps=70),
    Mechanism(name="not_reduced", layer="gradient", what="the all-reduce is skipped: replicas part", severity=HARD, inject=_not_reduced,
              roots=("gradient", "optimizer"), trainers=(LOOP2,), start=20, steps=40),
    Mechanism(name="not_zeroed", layer="gradient", what="gradients are never zeroed: they add up over steps", inject=_not_zeroed,
              roots=("gradient",), slow=True, severity=SUBTLE, steps=120),
]  # fmt: skip
