"""Policy faults: log-probs, ratio, KL, entropy, advantages and loss."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from benchmarks.faultbench.fault import HARD, LOOP1, LOOP2, NAN, SUBTLE, TRL1, TRL2, Fault, Mechanism


def _tensor(name: str, change: Callable[[Any], Any], site: str = "made") -> Callable[[Fault], None]:
    def inject(fault: Fault) -> None:
        fault.at(site, lambda batch: {**batch, name: change(batch[name])} if name in batch else None)

    return inject


def _at(site: str, change: Callable[[Any], Any]) -> Callable[[Fault], None]:
    def inject(fault: Fault) -> None:
        fault.at(site, change)

    return inject


def _first(value: float) -> Callable[[Any], Any]:
    def change(tensor: Any) -> Any:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


def _stale_old(fault: Fault) -> None:
    """Old log-probs come from weights that are not updated any more."""

    def freeze(batch: dict[str, Any]) -> dict[str, Any]:
        import torch

        frozen = fault.memory.setdefault("policy", copy.deepcopy(fault.run.policy))
        with torch.no_grad():
            return {**batch, "old_per_token_logps": fault.run.logps(frozen, batch)[0]}

    fault.at("made", freeze)


def _old_of_other_rows(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "old_per_token_logps": batch["old_per_token_logps"].roll(1, 0)}


def _reference_replaced(fault: Fault) -> None:
    def replace(_: Any) -> None:
        import torch

        if fault.since == 0:
            with torch.no_grad():
                for parameter in fault.run.reference.parameters():
                    parameter.add_(0.25 * torch.randn_like(parameter))

    fault.at("load", replace)


def _reference_follows(fault: Fault) -> None:
    def share(_: Any) -> None:
        fault.run.reference = fault.run.policy

    fault.at("load", share)


def _beta(fault: Fault) -> None:
    def heavy(loss: Any) -> Any:
        run = fault.run
        gap = run.batch["ref_per_token_logps"] - run.last_logps
        mask = run.batch["completion_mask"]
        return loss + 50.0 * ((gap.exp() - gap - 1) * mask).sum() / mask.sum()

    fault.at("loss", heavy)


def _entropy_term(factor: float) -> Callable[[Fault], None]:
    def inject(fault: Fault) -> None:
        fault.at("loss", lambda loss: loss + factor * fault.run.entropy)

    return inject


def _temperature(value: float) -> Callable[[Fault], None]:
    def inject(fault: Fault) -> None:
        def set_it(_: Any) -> None:
            fault.run.temperature = value

        fault.at("load", set_it)

    return inject


def _engine_stale(fault: Fault) -> None:
    def freeze(_: Any) -> None:
        if fault.since == 0:
            fault.run.rollout_policy = copy.deepcopy(fault.run.policy)

    fault.at("load", freeze)


def _engine_noisy(fault: Fault) -> None:
    def spoil(_: Any) -> None:
        import torch

        engine = copy.deepcopy(fault.run.policy)
        with torch.no_grad():
            for parameter in engine.parameters():
                parameter.add_(0.08 * torch.randn_like(parameter))
        fault.run.rollout_policy = engine

    fault.at("load", spoil)


def _raw_rewards(fault: Fault) -> None:
    def raw(advantages: Any) -> Any:
        return 3.0 + 3.0 * advantages.abs()

    fault.at("advantages", raw)


def _advantages_times(factor: float) -> Callable[[Fault], None]:
    return _at("advantages", lambda advantages: factor * advantages)


def _loss_on_padding(fault: Fault) -> None:
    import torch

    fault.at("batch", lambda batch: {**batch, "loss_mask": torch.ones_like(batch["completion_mask"])})


def _leaking(fault: Fault) -> None:
    fault.at("batch", lambda batch: {**batch, "advantages": batch["advantages"].clone().requires_grad_(True)})


def _log2(logps: Any) -> Any:
    return logps / 0.6931


ROWS = [
    Mechanism(name="loss_nan", layer="policy", what="the loss of rank 1 is NaN", severity=HARD, inject=_at("loss", lambda loss: loss * NAN),
              roots=("policy",), trainers=(LOOP2, TRL1, TRL2), rank=1, start=20, steps=30),
    Mechanism(name="log_probs_nan", layer="policy", what="one log-prob of rank 1 is NaN", severity=HARD,
              inject=_at("logps", lambda logps: logps * _first(NAN)(logps.detach() * 0 + 1)), roots=("policy",), trainers=(LOOP2,),
              rank=1, start=20, steps=30),
    Mechanism(name="old_log_probs_nan", layer="policy", what="one old log-prob is NaN", severity=HARD,
              inject=_tensor("old_per_token_logps", _first(NAN)), roots=("policy",), start=20, steps=30),
    Mechanism(name="reference_nan", layer="policy", what="one reference log-prob is NaN", severity=HARD,
              inject=_tensor("ref_per_token_logps", _first(NAN)), roots=("policy",), trainers=(LOOP1, TRL1), start=20, steps=30, config={"beta": 0.02}),
    Mechanism(name="advantage_nan", layer="policy", what="one advantage of rank 1 is NaN: 0/0 in the normalisation", severity=HARD,
              inject=_tensor("advantages", _first(NAN)), roots=("policy",), trainers=(LOOP2, TRL2), rank=1, start=20, steps=30),
    Mechanism(name="kl_overflows", layer="policy", what="a reference log-prob is 120 above: k3 overflows", severity=HARD,
              inject=_tensor("ref_per_token_logps", _first(120.0)), roots=("policy",), start=20, steps=40),
    Mechanism(name="log_probs_above_zero", layer="policy", what="log-probs of probability above one", severity=HARD,
              inject=_at("logps", lambda logps: logps + 8.0), roots=("policy",), start=20, steps=40),
    Mechanism(name="old_log_probs_of_other_rows", layer="policy", what="old log-probs are one row off", severity=HARD,
              inject=_at("made", _old_of_other_rows), roots=("policy",), start=20, steps=40),
    Mechanism(name="old_log_probs_frozen", layer="policy", what="old log-probs come from weights that stand still", inject=_stale_old,
              roots=("policy",), slow=True, start=20, steps=100, config={"learning_rate": 1e-3}),
    Mechanism(name="reference_replaced", layer="policy", what="the reference's weights are spoiled", inject=_reference_replaced,
              roots=("policy",), steps=70),
    Mechanism(name="reference_is_policy", layer="policy", what="the reference is the policy itself: KL is 0", inject=_reference_follows,
              roots=("policy",), severity=SUBTLE, steps=80),
    Mechanism(name="kl_weight_2500_fold", layer="policy", what="beta is 50 instead of 0.02", inject=_beta, roots=("policy", "gradient"), steps=80),
    Mechanism(name="entropy_minimised", layer="policy", what="the entropy bonus has the wrong sign and collapses the policy", inject=_entropy_term(3.0),
              roots=("policy",), slow=True, steps=140, config={"learning_rate": 1e-3}),
    Mechanism(name="entropy_maximised", layer="policy", what="the entropy bonus is far too large", inject=_entropy_term(-3.0),
              roots=("policy",), slow=True, steps=140, config={"learning_rate": 1e-3}),
    Mechanism(name="engine_temperature", layer="policy", what="the rollout engine samples at temperature 0.2, log-probs of it included",
              inject=_temperature(0.2), roots=("policy",), steps=70),
    Mechanism(name="engine_hot", layer="policy", what="the rollout engine samples at temperature 2.5", inject=_temperature(2.5),
              roots=("policy", "reward", "data"), steps=70),
    Mechanism(name="engine_not_synced", layer="policy", what="the rollout engine's weights are not updated any more", inject=_engine_stale,
              roots=("policy",), slow=True, steps=120, config={"learning_rate": 1e-3}),
    Mechanism(name="engine_weights_noisy", layer="policy", what="the rollout engine's weights are badly quantised", inject=_engine_noisy,
              roots=("policy",), steps=70),
    Mechanism(name="advantages_raw", layer="policy", what="advantages are neither centred nor scaled", severity=HARD, inject=_raw_rewards,
              roots=("policy",), start=20, steps=50),
    Mechanism(name="advantages_10_fold", layer="policy", what="advantages ten times too large", severity=HARD, inject=_advantages_times(10.0),
              roots=("policy",), start=20, steps=50),
    Mechanism(name="advantages_zero", layer="policy", what="advantages are all zero though rewards differ", inject=_advantages_times(0.0),
              roots=("policy",), start=20, steps=50),
    Mechanism(name="advantages_flipped", layer="policy", what="advantages have the wrong sign: the policy unlearns", inject=_advantages_times(-1.0),
              roots=("policy", "reward"), slow=True, severity=SUBTLE, steps=160, config={"learning_rate": 1e-3}),
    Mechanism(name="loss_on_padding", layer="policy", what="the loss counts padding as completion", inject=_loss_on_padding,
              roots=("policy", "gradient"), severity=SUBTLE, steps=90),
    Mechanism(name="inputs_with_graph", layer="policy", what="advantages require a gradient", inject=_leaking, roots=("policy",), start=20, steps=40),
    Mechanism(name="log_probs_base_two", layer="policy", what="log-probs in bits on one side of the ratio", severity=HARD, inject=_at("logps", _log2),
              roots=("policy",), start=20, steps=40),
]  # fmt: skip
