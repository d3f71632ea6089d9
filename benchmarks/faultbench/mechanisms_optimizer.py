"""Optimizer faults: learning rate, moments, weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.faultbench.fault import HARD, LOOP1, LOOP2, NAN, SUBTLE, TRL1, Fault, Mechanism


def _rate(value: float) -> Callable[[Fault], None]:
    """The optimizer uses another rate than the schedule says."""

    def inject(fault: Fault) -> None:
        def change(optimizer: Any) -> None:
            for group in optimizer.param_groups:
                group["lr"] = value

        fault.at("update", change)

    return inject


def _schedule(
    factor: Callable[[int], float],
) -> Callable[[Fault], None]:
    """The schedule itself says something else."""

    def inject(fault: Fault) -> None:
        original = fault.run.schedule_factor

        def changed(done: int) -> float:
            since = done + 1 - fault.mechanism.start
            if since == 0:
                fault.run.sites.first_act = fault.mechanism.start
                fault.run.note_fault()
            return original(done) * (factor(since) if since >= 0 else 1.0)

        fault.run.schedule_factor = changed

    return inject


def _group(**values: Any) -> Callable[[Fault], None]:
    def inject(fault: Fault) -> None:
        def change(optimizer: Any) -> None:
            for group in optimizer.param_groups:
                group.update(values)

        fault.at("update", change)

    return inject


def _moments(change: Callable[[dict[str, Any]], None]) -> Callable[[Fault], None]:
    def inject(fault: Fault) -> None:
        def spoil(optimizer: Any) -> None:
            for state in optimizer.state.values():
                change(state)

        fault.at("update", spoil)

    return inject


def _reset(state: dict[str, Any]) -> None:
    state["exp_avg"].zero_()
    state["exp_avg_sq"].zero_()


def _nan(state: dict[str, Any]) -> None:
    state["exp_avg"].view(-1)[0] = NAN


def _tiny_second(state: dict[str, Any]) -> None:
    state["exp_avg_sq"].mul_(1e-8)


def _weight(value: float, site: str = "updated") -> Callable[[Fault], None]:
    def inject(fault: Fault) -> None:
        def spoil(_: Any) -> None:
            fault.run.named_parameters()[3][1].data.view(-1)[0] = value

        fault.at(site, spoil)

    return inject


def _skipped(fault: Fault) -> None:
    original = fault.run.update
    fault.run.update = lambda: None if fault.acts() else original()


def _no_effect(fault: Fault) -> None:
    """The update goes to a copy: what is trained is not what is used."""

    def keep(optimizer: Any) -> None:
        fault.memory["weights"] = [p.detach().clone() for _, p in fault.run.named_parameters()]

    def put_back(optimizer: Any) -> None:
        import torch

        with torch.no_grad():
            for (_, parameter), old in zip(fault.run.named_parameters(), fault.memory["weights"], strict=True):
                parameter.copy_(old)

    fault.at("update", keep)
    fault.at("updated", put_back)


def _unheld(fault: Fault) -> None:
    def drop(_: Any) -> None:
        groups = fault.run.optimizer.param_groups
        groups[0]["params"] = groups[0]["params"][-4:]

    fault.at("step", drop)


def _replaced(fault: Fault) -> None:
    """The model's head is replaced after the optimizer was built (resized embedding): the old one is trained."""
    import torch

    head = fault.run.policy.lm_head
    head.weight = torch.nn.Parameter(head.weight.detach().clone())


def _drift(fault: Fault) -> None:
    def nudge(_: Any) -> None:
        import torch

        with torch.no_grad():
            for _, parameter in fault.run.named_parameters():
                parameter.mul_(1.001)

    fault.at("updated", nudge)


def _weights_noise(fault: Fault) -> None:
    def spoil(_: Any) -> None:
        import torch

        with torch.no_grad():
            for _, parameter in fault.run.named_parameters():
                parameter.add_(0.3 * parameter.std(unbiased=False) * torch.randn_like(parameter))

    fault.at("updated", spoil)


ROWS = [
    Mechanism(name="rate_off_schedule", layer="optimizer", what="the optimizer uses 100 times the schedule's rate", severity=HARD,
              inject=_rate(3e-2), roots=("optimizer",), trainers=(LOOP2, TRL1), start=20, steps=40),
    Mechanism(name="rate_zero_off_schedule", layer="optimizer", what="the optimizer's rate is 0, the schedule's is not", severity=HARD,
              inject=_rate(0.0), roots=("optimizer",), start=20, steps=40),
    Mechanism(name="schedule_jumps", layer="optimizer", what="the schedule itself jumps by 100", inject=_schedule(lambda since: 100.0),
              roots=("optimizer",), trainers=(LOOP2,), steps=60),
    Mechanism(name="schedule_ends_early", layer="optimizer", what="the schedule is at 0 in the middle of the run", inject=_schedule(lambda since: 0.0),
              roots=("optimizer",), steps=70),
    Mechanism(name="schedule_creeps_up", layer="optimizer", what="the rate grows by 8 percent a step", inject=_schedule(lambda since: 1.08**min(since, 90)),
              roots=("optimizer", "policy"), slow=True, severity=SUBTLE, steps=130),
    Mechanism(name="rate_of_ten", layer="optimizer", what="one step at a learning rate of 10", severity=HARD, inject=_rate(10.0),
              roots=("optimizer",), trainers=(LOOP1, TRL1), start=20, lasts=1, steps=40),
    Mechanism(name="moments_reset", layer="optimizer", what="the moments are zeroed in every step", inject=_moments(_reset),
              roots=("optimizer",), severity=SUBTLE, steps=80),
    Mechanism(name="moments_nan", layer="optimizer", what="one first moment is NaN", severity=HARD, inject=_moments(_nan),
              roots=("optimizer",), start=20, lasts=1, steps=40),
    Mechanism(name="second_moment_shrunk", layer="optimizer", what="second moments 1e-8 of what they were: updates explode",
              inject=_moments(_tiny_second), roots=("optimizer",), lasts=1, steps=60),
    Mechanism(name="weight_decay_huge", layer="optimizer", what="weight decay 300: weights melt away", inject=_group(weight_decay=300.0),
              roots=("optimizer",), steps=70),
    Mechanism(name="betas_wrong", layer="optimizer", what="betas (0, 0): every step is a sign step", inject=_group(betas=(0.0, 0.0)),
              roots=("optimizer",), severity=SUBTLE, steps=80),
    Mechanism(name="weight_nan", layer="optimizer", what="one weight is NaN after an update, on all ranks", severity=HARD, inject=_weight(NAN),
              roots=("optimizer",), trainers=(LOOP2, TRL1), start=20, lasts=1, steps=40),
    Mechanism(name="weight_of_one_rank", layer="optimizer", what="one weight of rank 1 is changed: replicas part silently", severity=HARD,
              inject=_weight(0.5), roots=("optimizer",), trainers=(LOOP2,), rank=1, start=20, lasts=1, steps=40, undecidable_rank=True),
    Mechanism(name="replica_drifts", layer="optimizer", what="the weights of rank 1 drift by 0.1 percent a step", severity=HARD, inject=_drift,
              roots=("optimizer",), trainers=(LOOP2,), rank=1, start=20, steps=40, undecidable_rank=True),
    Mechanism(name="weights_spoiled", layer="optimizer", what="noise of a third of its spread on every weight: a bad restore", inject=_weights_noise,
              roots=("optimizer", "policy"), lasts=1, steps=70),
    Mechanism(name="updates_not_applied", layer="optimizer", what="the optimizer is not called any more", inject=_skipped,
              roots=("optimizer",), trainers=(LOOP1,), start=20, steps=40),
    Mechanism(name="updates_without_effect", layer="optimizer", what="the update is made on a copy and lost", inject=_no_effect,
              roots=("optimizer",), start=20, steps=40),
    Mechanism(name="parameters_unheld", layer="optimizer", what="the optimizer holds the last four tensors only", inject=_unheld,
              roots=("optimizer",), start=20, steps=40),
    Mechanism(name="parameters_replaced", layer="optimizer", what="the head is replaced, the optimizer trains the old one", inject=_replaced,
              roots=("optimizer", "gradient"), start=1, steps=30),
    Mechanism(name="bf16_swallows_updates", layer="optimizer", what="bf16 weights, a rate too small to move them", inject=lambda fault: None,
              roots=("optimizer",), severity=SUBTLE, start=1, steps=60, config={"bf16": True, "learning_rate": 1e-6, "warmup": 0}),
]  # fmt: skip
