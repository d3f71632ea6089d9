"""The run of `check gradients`: load, one backward, spreads by layer, carriers, parameters and optimizer state."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.findings import Findings
from grpo_sentinel.preflight.gradients import GradientOptions
from grpo_sentinel.preflight.live import gradient_memory as held
from grpo_sentinel.preflight.live.anomaly import first_nan_operation
from grpo_sentinel.preflight.live.budget import SAMPLING_SHARE, affordable
from grpo_sentinel.preflight.live.carriers import Carriers, find_carriers
from grpo_sentinel.preflight.live.loading import Loaded, load_policy
from grpo_sentinel.preflight.live.rollout import Batch, generate, given_responses
from grpo_sentinel.preflight.live.scoring import advantages, backward
from grpo_sentinel.preflight.live.spread import Spread, gradients_of, spreads
from grpo_sentinel.preflight.optimizer_state import compare_state, rate_faults, read_optimizer_state
from grpo_sentinel.preflight.prompts import built_in_prompts, read_prompts
from grpo_sentinel.preflight.report import CheckReport, excerpt
from grpo_sentinel.preflight.reward import load_target
from grpo_sentinel.preflight.reward_trial import KEEPS_GRAPH, OutOfTime, Trial

_PASSES = 7.0  # forwards a sample: scoring, three for the backward of all, three for its own
_GROWTH_SECONDS = 10.0  # at most, for seeing whether memory grows
_LAST_SECONDS = 1.0  # kept for the optimizer's file and the report
_BF16_STEP = 2.0**-9  # half of the gap between neighbours, relative
_FAIR = 4.0  # times its fair share before one token is told
_CARRIED_BY_FEW = ("one-sample", "one-token", "layer-dominates", "norm")
_OUTLIER = 20.0  # times the median sample's norm before one sample is told


def check(target: str, options: GradientOptions) -> CheckReport:
    """Run everything that applies."""
    began = time.monotonic()
    deadline = began + options.timeout_seconds
    loaded = load_policy(target, dtype=options.dtype, device=options.device)
    found = Findings(target)
    found.faults += loaded.faults
    made = _batch(loaded, options, found, deadline)
    if made is None:
        _optimizer(found, loaded)
        return found.report("gradients", time.monotonic() - began)
    batch, weights = made
    whole = len(batch.samples)
    batch, own, each = affordable(loaded, batch, deadline - _LAST_SECONDS, _PASSES)
    weights = weights[: len(batch.samples)]
    if len(batch.samples) < whole:
        found.not_seen.append(f"{whole - len(batch.samples)} of {whole} samples: the time was up (--timeout, --device)")
    trainable = [name for name, one in loaded.model.named_parameters() if one.requires_grad]
    if not trainable:
        raise SentinelError(f"{target}: not one parameter is trainable; unfreeze it, or put adapters on it")
    loaded.model.zero_grad(set_to_none=True)
    backward(loaded, batch, weights, own.logp_BC, None, 0.0)
    _layers(found, loaded, options)
    _parameters(found, loaded)
    carriers = find_carriers(loaded, batch, weights, own.logp_BC, deadline - _LAST_SECONDS)
    _carried(found, loaded, batch, carriers, options)
    _peaks(found, options.spike)
    _operation(found, loaded, batch, weights, own.logp_BC, carriers)
    held.memory(found, loaded)
    held.headroom(found, loaded, carriers, own.largest_logit)
    held.growth(
        found,
        loaded,
        batch,
        weights,
        own.logp_BC,
        min(deadline - _LAST_SECONDS, time.monotonic() + _GROWTH_SECONDS),
        each,
    )
    _optimizer(found, loaded)
    return found.report("gradients", time.monotonic() - began)


def _batch(
    loaded: Loaded, options: GradientOptions, found: Findings, deadline: float
) -> tuple[Batch, torch.Tensor] | None:  # fmt: skip
    """Take the data's responses, or let the policy answer; None, and told, where its probabilities are none."""
    count, size = options.samples, options.group_size
    rows = read_prompts(options.data, options.fields, count) if options.data else []
    answered = [one for one in rows if one.completion]
    if answered:
        batch = given_responses(loaded, answered, options.max_tokens)
        found.looked_at.append("responses of the data, each with advantage 1")
        return batch, torch.ones(len(answered))
    prompts = rows or built_in_prompts(count)
    if not rows:
        found.not_seen.append("your own samples (--data FILE): built-in prompts were used")
    try:
        batch = generate(
            loaded, prompts[: max(1, math.ceil(count / size))], group_size=size, max_tokens=options.max_tokens,
            seed=options.seed, deadline=deadline - (1 - SAMPLING_SHARE) * options.timeout_seconds,
        )  # fmt: skip
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise SentinelError(f"{loaded.name} cannot generate: {' '.join(str(error).split())[:200]}") from error
        if not found.has("non-finite-weights"):
            found.broken("non-finite-logits", "sampling met NaN or infinite probabilities",
                         "see the weights, the dtype (float16 overflows at 65,504), and the output layer")  # fmt: skip
        found.not_seen.append("gradients: the policy cannot answer; data with responses (--response FIELD) needs none")
        return None
    weights = _rewarded(batch, options, found)
    return batch, weights


def _rewarded(batch: Batch, options: GradientOptions, found: Findings) -> torch.Tensor:
    size = len(batch.samples)
    if options.reward:
        trial = Trial(load_target(options.reward), time.monotonic() + 20.0)
        try:
            values = trial.score(batch.samples)
        except OutOfTime:
            values = []
        if graph := trial.graph_kept():
            found.doubtful("keeps-graph", f"{options.reward}: {graph}", KEEPS_GRAPH)
        if values and all(one is not None and math.isfinite(one) for one in values):
            weights = advantages(torch.tensor([float(one or 0.0) for one in values]), batch.group_size)
            if bool((weights != 0).any()):
                found.looked_at.append(f"{size} completions sampled by the policy, advantages from {options.reward}")
                return weights
            why = "gave equal rewards inside every group"
        else:
            why = "gave no usable rewards"
        found.cannot_tell("no-advantage", f"{options.reward} {why}: advantages of +1 and -1 instead",
                          "see check reward, or try more samples")  # fmt: skip
    else:
        found.not_seen.append("gradients under real advantages (--reward): +1 and -1 in turn were used")
    found.looked_at.append(f"{size} completions sampled by the policy, advantages +1 and -1 in turn")
    return torch.tensor([1.0, -1.0]).repeat((size + 1) // 2)[:size]


def _layers(found: Findings, loaded: Loaded, options: GradientOptions) -> None:
    """Distribution by layer (S25), and the norm against its limit (S27)."""
    by_layer = spreads(gradients_of(loaded.model))
    found.facts["layers"] = {name: spread.summary() for name, spread in by_layer.items()}
    norm = math.sqrt(sum(spread.square for spread in by_layer.values()))
    count = sum(spread.count for spread in by_layer.values())
    found.facts["norm"] = norm
    found.looked_at.append(f"one backward in {loaded.dtype}: {count:,} gradient elements in {len(by_layer)} layers")
    bad = {name: spread.nonfinite for name, spread in by_layer.items() if spread.nonfinite}
    if bad:
        found.broken(
            "non-finite-gradient",
            f"{sum(bad.values()):,} gradient elements are NaN or infinite, in "
            f"{len(bad)} layers, the last in forward order {list(bad)[-1]}",
            "the layer nearest to the loss is where it began; the sample is named below",
            len(bad),
            list(bad),
        )
    if norm == 0.0 and not bad:
        found.broken("no-gradient", "every gradient is 0", "see advantages, masks, and detached tensors")
    if options.max_norm is not None and norm > options.max_norm:
        found.broken("norm", f"the gradient norm is {norm:,.4g}, above {options.max_norm:g}",
                     "see the layers and the sample that carry it")  # fmt: skip
    _spikes(found, by_layer, options)


def _spikes(found: Findings, by_layer: dict[str, Spread], options: GradientOptions) -> None:
    """max > 10 means is one sign of several (S25), and every transformer has it: a fact, told where more is wrong."""
    signs = []
    for name, spread in by_layer.items():
        one = spread.summary()
        if one["count"] and one["max"] > options.spike * one["mean"] and one["p95"] < 0.1 * one["max"]:
            signs.append(name)
    found.facts["peaked_layers"] = signs
    norms = sorted(spread.norm for spread in by_layer.values())
    median = norms[len(norms) // 2] if norms else 0.0
    far = [name for name, spread in by_layer.items() if median and spread.norm > 100 * median]
    if far:
        found.doubtful(
            "layer-dominates",
            f"the gradient of {far[0]} is {by_layer[far[0]].norm / median:,.0f} times the median layer's",
            "see its initialisation and the scale of its input",
            len(far),
            far,
        )


def _parameters(found: Findings, loaded: Loaded) -> None:
    """Frozen, without gradient, and held by no optimizer (S34)."""
    named = dict(loaded.model.named_parameters())
    frozen = [name for name, one in named.items() if not one.requires_grad]
    without = [name for name, one in named.items() if one.requires_grad and one.grad is None]
    zero = [name for name, one in named.items() if one.grad is not None and not bool(one.grad.any())]
    found.facts["parameters"] = {
        "tensors": len(named), "frozen": len(frozen), "without_gradient": len(without), "zero_gradient": len(zero),
    }  # fmt: skip
    found.looked_at.append(f"{len(named)} parameters: frozen, reached by the loss, held by the optimizer")
    if without:
        found.doubtful("unreached", f"{len(without)} trainable parameters get no gradient",
                       "freeze what is not used: DDP waits for it, and weight decay still changes it",
                       len(without), without)  # fmt: skip
    if frozen:
        found.notes.append(f"{len(frozen)} of {len(named)} parameters are frozen, for example {frozen[0]}")
    if loaded.optimizer is not None:
        held = {id(one) for group in loaded.optimizer.param_groups for one in group["params"]}
        unheld = [name for name, one in named.items() if one.requires_grad and id(one) not in held]
        wrong = [name for name, one in named.items() if _other_shape(loaded.optimizer.state.get(one), one)]
        if wrong:
            found.broken(
                "state-shape", f"{len(wrong)} states have another shape than their parameter",
                "resize the vocabulary or the layer before the optimizer is built", len(wrong), wrong,
            )  # fmt: skip
        strange = len(held - {id(one) for one in named.values()})
        if unheld:
            found.broken(
                "not-in-optimizer",
                f"{len(unheld)} trainable parameters are not held by the optimizer",
                "build the optimizer after parameters were added, unfrozen or wrapped",
                len(unheld),
                unheld,
            )
        if strange:
            found.broken(
                "stale-state",
                f"the optimizer holds {strange} tensors that are not in the model",
                "build it after adapters, and after .to(dtype) or a resize replaced parameters",
                strange,
            )


def _other_shape(state: Any, parameter: torch.Tensor) -> bool:
    moments = [one for one in (state or {}).values() if isinstance(one, torch.Tensor) and one.ndim]
    return any(one.shape != parameter.shape for one in moments)


def _carried(
    found: Findings, loaded: Loaded, batch: Batch, carriers: Carriers, options: GradientOptions
) -> None:  # fmt: skip
    """Sample and token that carry the gradient (S26)."""
    count = len(carriers.norms_B)
    index, share = carriers.top_sample()
    row, place, token_share = carriers.top_token()
    width = batch.width
    token = int(batch.ids_BT[row, -width + place] if place < width else 0)
    text = excerpt(loaded.tokenizer.decode([token]), 30)
    sample = batch.samples[index]
    tokens = max(1, int(batch.completion_BC[:count].sum()))
    found.facts["carriers"] = {
        "samples": count, "top_sample": sample.place, "top_sample_share": share,
        "top_token": {"sample": batch.samples[row].place, "place": place, "id": token, "share": token_share},
        "sample_norms": _range(carriers.norms_B),
    }  # fmt: skip
    found.looked_at.append(
        f"the gradient of each of {count} samples, and of each of {tokens:,} tokens at the output layer"
    )
    if count < len(batch.samples):
        found.not_seen.append(f"{len(batch.samples) - count} samples one by one: the time was up (--timeout)")
    if share > options.most_share and _stands_out(carriers.norms_B, index):
        found.doubtful("one-sample", f"one of {count} samples carries {share:.0%} of the squared gradient",
                       "look at it: an outlier of length, reward or content; clip per sample, or drop it",
                       examples=(f"{sample.place}: {excerpt(sample.completion, 60)}",))  # fmt: skip
    if token_share > options.most_share and token_share > _FAIR / tokens and tokens >= 8:
        found.doubtful("one-token", f"one of {tokens:,} tokens carries {token_share:.0%} of the squared gradient",
                       "a token the policy holds for almost impossible: see special tokens, template, and masks",
                       examples=(f"{batch.samples[row].place}, token {place}: {token} {text!r}",))  # fmt: skip


def _peaks(found: Findings, spike: float) -> None:
    """Peaked layers are told beside a fault that they explain; by themselves every transformer has them (S25)."""
    layers = found.facts["peaked_layers"]
    if isinstance(layers, list) and layers and any(map(found.has, _CARRIED_BY_FEW)):
        found.notes.append(f"in {len(layers)} layers the largest |gradient| is above {spike:g} means and ten times the "
                           "95th percentile: few elements carry it, as the faults above say")  # fmt: skip
    else:
        found.facts["peaked_layers"] = []


def _stands_out(norms: Sequence[float], index: int) -> bool:
    """Far above the median of the others that have a gradient: among few samples one carries half of it by chance."""
    others = sorted(one for place, one in enumerate(norms) if place != index and one > 0)
    return bool(others) and not norms[index] <= _OUTLIER * others[len(others) // 2]


def _range(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]}


def _operation(
    found: Findings, loaded: Loaded, batch: Batch, weights: torch.Tensor, old_BC: torch.Tensor, carriers: Carriers
) -> None:
    """Name the operation that makes the first NaN (S28), where there is one."""
    bad = [row for row, norm in enumerate(carriers.norms_B) if not math.isfinite(norm)]
    if not bad:
        return
    name = first_nan_operation(loaded, batch, weights, old_BC, bad[0])
    if name is not None:
        found.facts["nan_operation"] = name
        place = batch.samples[bad[0]].place
        found.looked_at.append(f"{place} again under anomaly detection: {name} gives the first NaN")


def _optimizer(found: Findings, loaded: Loaded) -> None:
    """State of a checkpoint's optimizer against the parameters (S33, S34), its rates (S35), and bfloat16's steps."""
    if loaded.directory is None:
        if loaded.optimizer is None:
            found.not_seen.append("an optimizer: the function returned none")
        return
    state = read_optimizer_state(loaded.directory)
    if isinstance(state, str):
        found.not_seen.append(state)
        return
    shapes = {name: tuple(one.shape) for name, one in loaded.model.named_parameters() if one.requires_grad}
    found.faults += compare_state(state, shapes, loaded.name)
    faults, notes = rate_faults(loaded.directory, state, loaded.name)
    found.faults += faults
    found.notes += notes
    found.looked_at.append(f"{state.file}: {len(state.shapes)} states of {len(state.held)} parameters, not unpickled")
    found.facts["learning_rates"] = list(state.rates[:4])
    rate = max(state.rates, default=0.0)
    saved = str(getattr(loaded.model.config, "dtype", None) or getattr(loaded.model.config, "torch_dtype", ""))
    if rate and "bfloat16" in saved:
        sizes = torch.stack([one.detach().abs().double().mean() for one in loaded.model.parameters() if one.ndim > 1])
        relative = rate / float(sizes.median())  # an Adam update is about the learning rate
        found.facts["update_ratio"] = relative
        if relative < _BF16_STEP / 4:
            found.doubtful(
                "lost-updates", f"an update of about {rate:g} is {relative:.2g} of a usual weight, below what bfloat16 "
                "can hold (2^-9)", "keep float32 master weights (mixed precision), or raise the learning rate",
            )  # fmt: skip


__all__ = ["check"]
