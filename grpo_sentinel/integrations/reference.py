"""The reference model of a GRPOTrainer: a model of its own, or the policy with its adapter off during the pass.

Everything is read on the host, without a tensor's value. With an adapter the reference is wrong when the adapter is on
in its pass (KL is then 0 for ever), which nothing in the log shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from grpo_sentinel.agent.probes.model_state import active_adapters, adapter_layers, autograd_kept, observe_model

_NAME = "reference"
_KEPT = "ref"  # TRL's name of the initial copy of an adapter that is trained on


class ReferenceWatch:
    """Sees the passes for log-probs of one generation; the last one before the output is the reference's."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._layers: list[torch.nn.Module] | None = None
        self._active: set[str] | None = None  # adapters that were on in the newest pass
        self._graph: bool | None = None

    def saw(self, args: Any, result: Any) -> None:
        """Look at a pass that has just been made: `args` of the log-prob method, and what it returned."""
        own = self._own()
        if own is not None:
            if args and args[0] is own:
                self._graph = _graph(result)
        elif self._wanted() is not None:
            self._active, self._graph = active_adapters(self._adapters()), _graph(result)

    def judge(self, output: Any) -> dict[str, float]:
        """Judge the reference pass of the generation that `output` came from; empty where there was none."""
        active, graph, self._active, self._graph = self._active, self._graph, None, None
        if not isinstance(output, Mapping) or output.get("ref_per_token_logps") is None:
            return {}
        found = {} if graph is None else {f"reward.model_autograd[{_NAME}]": float(graph)}
        wanted = self._wanted()
        if active is not None and wanted is not None:
            found[f"reward.model_adapter_mismatch[{_NAME}]"] = float(len(self._adapters()) if active != wanted else 0)
        return found

    def state(self) -> dict[str, float]:
        """Read modes, dropout, trained parameters, dtypes and devices of a reference model of its own.

        TRL leaves `requires_grad` on in the reference, which harms nobody while no optimizer holds its parameters:
        those that one holds are counted.
        """
        own = self._own()
        if own is None:
            return {}
        groups = getattr(getattr(self._trainer, "optimizer", None), "param_groups", ())
        held = {id(parameter) for group in groups for parameter in group["params"]}
        trained = float(sum(id(parameter) in held for parameter in own.parameters()))
        return {**observe_model(_NAME, own), f"reward.model_trainable_parameters[{_NAME}]": trained}

    def _own(self) -> torch.nn.Module | None:
        model = getattr(self._trainer, "ref_model", None)
        return model if isinstance(model, torch.nn.Module) else None

    def _wanted(self) -> set[str] | None:
        """Give the adapters that should be on in the reference pass; None where the policy has none."""
        if not self._adapters():
            return None
        names = {name for layer in self._adapters() for name in getattr(layer, "lora_A", ())}
        return {_KEPT} if _KEPT in names else set()

    def _adapters(self) -> list[torch.nn.Module]:
        if self._layers is None:
            self._layers = adapter_layers(self._trainer.model)
        return self._layers


def _graph(result: Any) -> bool:
    return autograd_kept(result[0] if isinstance(result, tuple) else result)
