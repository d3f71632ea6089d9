"""A snapshot of one step of a TRL trainer: its own batch, generation, rewards and loss; no optimizer step, no file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.graph_watch import GraphSeen, needs_gradient, watch_graph
from grpo_sentinel.preflight.live.snapshot_run import _seed, activations, dtype_of, layers_of
from grpo_sentinel.preflight.on_stderr import on_stderr
from grpo_sentinel.preflight.snapshot import Samples, Snapshot, digest_of
from grpo_sentinel.preflight.snapshot_take import SnapshotOptions, versions

_LOG_PROBS = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")


class _Listener:
    """Wraps methods of one trainer and keeps what they returned; puts them back."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._wrapped: list[str] = []
        self.rewards: torch.Tensor | None = None
        self.log_probs: torch.Tensor | None = None

    def __enter__(self) -> _Listener:
        self._wrap("_calculate_rewards", self._take_rewards)
        for name in _LOG_PROBS:
            self._wrap(name, self._take_log_probs)
        return self

    def __exit__(self, *rest: object) -> None:
        for name in self._wrapped:
            delattr(self._trainer, name)

    def _wrap(self, name: str, take: Callable[[Any], None]) -> None:
        method = getattr(self._trainer, name, None)
        if method is None:
            return

        def listening(*args: Any, **kwargs: Any) -> Any:
            out = method(*args, **kwargs)
            take(out)
            return out

        setattr(self._trainer, name, listening)
        self._wrapped.append(name)

    def _take_rewards(self, out: Any) -> None:
        if isinstance(out, torch.Tensor):
            self.rewards = out.detach().double().cpu()

    def _take_log_probs(self, out: Any) -> None:
        logps = out[0] if isinstance(out, (tuple, list)) else out
        if torch.is_grad_enabled() and isinstance(logps, torch.Tensor):
            self.log_probs = logps.detach().double().cpu()


def of_trainer(source: str, trainer: Any, options: SnapshotOptions) -> Snapshot:
    """Take one step. Raises `SentinelError` when the trainer cannot make one outside of train()."""
    model = trainer.model
    model.train()
    model.zero_grad(set_to_none=True)
    if not hasattr(trainer, "current_gradient_accumulation_steps"):
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    graph = GraphSeen()
    try:
        with on_stderr(), _Listener(trainer) as heard:
            _seed(options.seed)
            rows = next(iter(trainer.get_train_dataloader()))
            _seed(options.seed)
            with watch_graph(graph):
                inputs = trainer._prepare_inputs(rows)
            with activations(model) as seen:
                loss = trainer.compute_loss(model, inputs)
                loss.backward()
    except SentinelError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise SentinelError(
            f"{source}: one step of {type(trainer).__name__} raised {type(error).__name__}: {text}"
        ) from error
    mask = _mask(inputs)
    logps = heard.log_probs
    return Snapshot(
        source=source, kind="trainer", dtype=dtype_of(model), seed=options.seed, versions=versions(),
        samples=_samples(inputs), attached=_attached(inputs, graph), loss=float(loss.detach()),
        rewards=None if heard.rewards is None else tuple(float(one) for one in heard.rewards.flatten().tolist()),
        log_probs=None if logps is None or mask is None or mask.shape != logps.shape else tuple(
            tuple(float(one) for one in row[keep].tolist()) for row, keep in zip(logps, mask, strict=True)
        ),
        layers=layers_of(model, seen),
    )  # fmt: skip


def _attached(inputs: Any, graph: GraphSeen) -> tuple[str, ...]:
    """What was made before the loss with autograd (S31): generation, rewards and the reference need none."""
    named = inputs.items() if isinstance(inputs, dict) else ()
    passes = (f"generation, reward or reference ({graph.tensors:,} tensors)",) if graph.tensors else ()
    return (*sorted(str(name) for name, value in named if needs_gradient(value)), *passes)


def _mask(inputs: Any) -> torch.Tensor | None:
    mask = inputs.get("completion_mask") if isinstance(inputs, dict) else None
    return mask.detach().bool().cpu() if isinstance(mask, torch.Tensor) else None


def _samples(inputs: Any) -> Samples:
    """The ids that were trained on, without padding."""
    parts: dict[str, tuple[tuple[int, ...], ...]] = {}
    for name in ("prompt", "completion"):
        ids, mask = (inputs.get(f"{name}_{what}") if isinstance(inputs, dict) else None for what in ("ids", "mask"))
        if isinstance(ids, torch.Tensor) and isinstance(mask, torch.Tensor):
            parts[name] = tuple(
                tuple(int(one) for one in row[keep].tolist())
                for row, keep in zip(ids.cpu(), mask.bool().cpu(), strict=True)
            )
    prompts, completions = parts.get("prompt", ()), parts.get("completion", ())
    return Samples(
        digest=digest_of(prompts, completions), count=len(completions), prompt_ids=prompts, completion_ids=completions
    )


__all__ = ["of_trainer"]
