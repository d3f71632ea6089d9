"""One step of a model, a loop or a TRL trainer with everything that a snapshot keeps of it.

A function named as MODULE:FUNCTION returns one of
    a trainer     with get_train_dataloader and compute_loss (TRL's GRPOTrainer): one of its own batches
    a mapping     {"model": module, "step": callable}; step() gives the loss, or a mapping with loss, rewards,
                  log_probs, samples
    (model, tokenizer)   as for `check policy`
The seed is set before it is built and again before the step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.graph_watch import needs_gradient
from grpo_sentinel.preflight.live.loading import Loaded, call_builder, load_policy
from grpo_sentinel.preflight.live.rollout import Batch, generate, given_responses, lay_out
from grpo_sentinel.preflight.live.scoring import backward_nll, score
from grpo_sentinel.preflight.live.spread import gradients_of, layer_of, spreads
from grpo_sentinel.preflight.on_stderr import on_stderr
from grpo_sentinel.preflight.prompts import built_in_prompts, read_prompts
from grpo_sentinel.preflight.reward import load_target
from grpo_sentinel.preflight.reward_target import Sample
from grpo_sentinel.preflight.snapshot import LayerState, Samples, Snapshot, digest_of
from grpo_sentinel.preflight.snapshot_take import SnapshotOptions, versions

_CHUNK = 1 << 24
_DETACHED = ("rewards", "advantages", "ref_log_probs", "old_log_probs")  # of what a loop's step tells


def take(source: str, options: SnapshotOptions) -> Snapshot:
    """Take one of a directory or a function. Raises `SentinelError` in one sentence."""
    if Path(source).expanduser().is_dir():
        return _of_model(load_policy(source, dtype=options.dtype, device=options.device), options)
    _seed(options.seed)
    built = call_builder(source)
    if hasattr(built, "get_train_dataloader") and hasattr(built, "compute_loss"):
        from grpo_sentinel.preflight.live.snapshot_trainer import of_trainer

        return of_trainer(source, built, options)
    if isinstance(built, Mapping) and callable(built.get("step")):
        return _of_loop(source, built, options)
    if isinstance(built, (tuple, list)) and len(built) >= 2 and isinstance(built[0], torch.nn.Module):
        built[0].eval()
        return _of_model(Loaded(name=source, model=built[0], tokenizer=built[1], directory=None), options)
    raise SentinelError(f"{source} must return a trainer, a mapping with model and step, or (model, tokenizer)")


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def _of_model(loaded: Loaded, options: SnapshotOptions) -> Snapshot:
    batch = _batch(loaded, options)
    rewards = _rewards(batch, options)
    _seed(options.seed)
    own = score(loaded, batch)
    loaded.model.zero_grad(set_to_none=True)
    with activations(loaded.model) as seen:
        loss = backward_nll(loaded, batch)
    mask = batch.completion_BC.cpu()
    return Snapshot(
        source=loaded.name, kind="model", dtype=loaded.dtype, seed=options.seed, samples=_samples(batch),
        loss=loss, rewards=rewards, versions=versions(), layers=layers_of(loaded.model, seen),
        log_probs=tuple(
            tuple(float(one) for one in row[keep].tolist()) for row, keep in zip(own.logp_BC, mask, strict=True)
        ),
    )  # fmt: skip


def _rewards(batch: Batch, options: SnapshotOptions) -> tuple[float, ...] | None:
    if not options.reward:
        return None
    try:
        scorer = load_target(options.reward)
        with on_stderr():
            values = scorer.score(batch.samples)
    except SentinelError:
        raise
    except Exception as error:
        raise SentinelError(f"{options.reward} raised {type(error).__name__}: {error}; see check reward") from error
    return tuple(float("nan") if one is None else float(one) for one in values)


def _batch(loaded: Loaded, options: SnapshotOptions) -> Batch:
    if options.like is not None:
        known = options.like.samples
        if not known.prompt_ids or len(known.texts) != len(known.prompt_ids):
            raise SentinelError(f"--like {options.like.source}: it keeps no samples of a model ({options.like.kind})")
        pairs = [
            (_sample_of(text), list(prompt), list(completion))
            for text, prompt, completion in zip(known.texts, known.prompt_ids, known.completion_ids, strict=True)
        ]
        return lay_out(loaded, pairs, 1)
    rows = read_prompts(options.data, options.fields, options.samples) if options.data else []
    answered = [one for one in rows if one.completion]
    if answered:
        return given_responses(loaded, answered, options.max_tokens)
    prompts = rows or built_in_prompts(options.samples)
    return generate(loaded, prompts, group_size=1, max_tokens=options.max_tokens, seed=options.seed,
                    deadline=time.monotonic() + 40.0, greedy=True)  # fmt: skip


def _sample_of(text: Mapping[str, Any]) -> Sample:
    return Sample(
        prompt=[(str(role), str(words)) for role, words in text["prompt"]], completion=str(text["completion"]),
        answer=str(text["answer"]), place=str(text["place"]), columns=dict(text["columns"]),
    )  # fmt: skip


def _samples(batch: Batch) -> Samples:
    left = batch.ids_BT.shape[1] - batch.width
    prompts, completions = [], []
    for ids, mask in zip(batch.ids_BT.cpu(), batch.mask_BT.cpu(), strict=True):
        prompts.append(tuple(int(one) for one in ids[:left][mask[:left]].tolist()))
        completions.append(tuple(int(one) for one in ids[left:][mask[left:]].tolist()))
    return Samples(
        digest=digest_of(prompts, completions), count=len(prompts), prompt_ids=tuple(prompts),
        completion_ids=tuple(completions),
        texts=tuple(
            {"prompt": [list(one) for one in sample.prompt], "completion": sample.completion, "answer": sample.answer,
             "place": sample.place, "columns": json.loads(json.dumps(dict(sample.columns), default=str))}
            for sample in batch.samples
        ),
    )  # fmt: skip


def _of_loop(source: str, built: Mapping[str, Any], options: SnapshotOptions) -> Snapshot:
    model = built.get("model")
    if not isinstance(model, torch.nn.Module):
        raise SentinelError(f"{source}: the mapping must name its model")
    model.zero_grad(set_to_none=True)
    _seed(options.seed)
    with activations(model) as seen, on_stderr():
        try:
            out = built["step"]()
        except Exception as error:
            raise SentinelError(f"{source}: its step raised {type(error).__name__}: {error}") from error
        told = out if isinstance(out, Mapping) else {"loss": out}
        loss = told.get("loss")
        if isinstance(loss, torch.Tensor) and loss.requires_grad and not _has_gradients(model):
            loss.backward()  # a loop that has not called it itself
    rewards, logps = told.get("rewards"), told.get("log_probs")
    given = told.get("samples")
    return Snapshot(
        source=source, kind="loop", dtype=dtype_of(model), seed=options.seed, versions=versions(),
        samples=Samples(digest=digest_of(_plain(given)), count=_size(given)),
        loss=None if loss is None else float(loss.detach() if isinstance(loss, torch.Tensor) else loss),
        rewards=None if rewards is None else tuple(float(one) for one in _plain(rewards)),
        log_probs=None if logps is None else tuple(
            tuple(float(one) for one in (row if isinstance(row, list) else [row])) for row in _plain(logps)
        ),
        layers=layers_of(model, seen), attached=tuple(name for name in _DETACHED if needs_gradient(told.get(name))),
    )  # fmt: skip


def _size(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 0


def _plain(value: Any) -> Any:
    return value.detach().cpu().tolist() if isinstance(value, torch.Tensor) else value


def _has_gradients(model: torch.nn.Module) -> bool:
    return any(one.grad is not None for one in model.parameters())


def dtype_of(model: torch.nn.Module) -> str:
    """Dtype of the first floating-point parameter."""
    kinds = [one.dtype for one in model.parameters() if one.is_floating_point()]
    return str(kinds[0]).removeprefix("torch.") if kinds else "float32"


@contextlib.contextmanager
def activations(model: torch.nn.Module) -> Iterator[dict[str, float]]:
    """Sum up the squared L2 norm of what each layer gives, over all passes with grad, in forward order."""
    seen: dict[str, float] = {}
    hooks = []

    def watch(name: str) -> Any:
        def after(module: torch.nn.Module, given: object, out: object) -> None:
            hidden = out[0] if isinstance(out, tuple) and out else out
            if torch.is_grad_enabled() and isinstance(hidden, torch.Tensor) and hidden.is_floating_point():
                seen[name] = seen.get(name, 0.0) + float(hidden.detach().double().square().sum())

        return after

    own = {layer_of(name) for name, _ in model.named_parameters()}
    for name, part in model.named_modules():
        if name in own:
            hooks.append(part.register_forward_hook(watch(name)))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def layers_of(model: torch.nn.Module, seen: Mapping[str, float]) -> tuple[LayerState, ...]:
    """Digest of the weights, activation and gradient norm of each layer: first those that ran, in their order."""
    digests: dict[str, Any] = {}
    for name, one in model.named_parameters():
        _digest(digests.setdefault(layer_of(name), hashlib.sha256()), one)
    norms = {
        name: float("nan") if spread.nonfinite else spread.norm
        for name, spread in spreads(gradients_of(model)).items()
    }  # fmt: skip
    order = [*(name for name in seen if name in digests), *(name for name in digests if name not in seen)]
    return tuple(
        LayerState(name=name, weights=digests[name].hexdigest()[:16], gradient=norms.get(name),
                   activation=seen[name] ** 0.5 if name in seen else None)
        for name in order
    )  # fmt: skip


def _digest(into: Any, tensor: torch.Tensor) -> None:
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    for start in range(0, flat.numel(), _CHUNK):
        into.update(bytes(flat[start : start + _CHUNK].cpu().numpy()))


__all__ = ["activations", "dtype_of", "layers_of", "take"]
