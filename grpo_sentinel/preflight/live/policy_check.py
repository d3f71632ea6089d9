"""The run of `check policy`: load, sample, score, step; `policy_judge` says what it means."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_tokens import NO_TEMPLATE
from grpo_sentinel.preflight.environment_host import read_json
from grpo_sentinel.preflight.environment_tokenizers import TokenizerFacts, own_faults, pair_faults, read_facts
from grpo_sentinel.preflight.findings import Findings
from grpo_sentinel.preflight.live import policy_judge as judged
from grpo_sentinel.preflight.live.budget import SAMPLING_SHARE, affordable
from grpo_sentinel.preflight.live.engines import compare_engine
from grpo_sentinel.preflight.live.loading import Loaded, load_policy
from grpo_sentinel.preflight.live.padding import padding_gap
from grpo_sentinel.preflight.live.rollout import Batch, generate
from grpo_sentinel.preflight.live.scoring import Scores, advantages, backward, score
from grpo_sentinel.preflight.model_kind import adapter_base, require_causal, require_same_kind
from grpo_sentinel.preflight.policy import PolicyOptions
from grpo_sentinel.preflight.prompts import built_in_prompts, read_prompts
from grpo_sentinel.preflight.report import CheckReport, Fault
from grpo_sentinel.preflight.reward import load_target
from grpo_sentinel.preflight.reward_head import head_loss
from grpo_sentinel.preflight.reward_model import tokenizer_of
from grpo_sentinel.preflight.reward_target import Sample
from grpo_sentinel.preflight.reward_trial import KEEPS_GRAPH, OutOfTime, Trial

_REWARD_SECONDS = 20.0
_PASSES = 4.0  # forwards a sample: scoring, and three for the backward
_LAST_SECONDS = 2.0  # kept for the report itself


def check(target: str, options: PolicyOptions) -> CheckReport:
    """Run everything that applies; what stands in the way of the rest ends it with what is known."""
    began = time.monotonic()
    notes = Findings(target)
    _kinds(target, options)
    _tokenizers(target, options, notes)
    policy = load_policy(target, dtype=options.dtype, device=options.device, attention=options.attention)
    notes.faults += policy.faults
    notes.notes += policy.notes
    prompts = _prompts(options, notes)
    messages = bool(options.data) and any(one.prompt[0][0] for one in prompts)
    if messages and not getattr(policy.tokenizer, "chat_template", None):
        notes.notes.append(NO_TEMPLATE)
    if any(fault.code == "non-finite-weights" for fault in policy.faults):
        notes.not_seen.append("everything else: with such weights no number means anything")
    else:
        _run(policy, prompts, options, notes, began + options.timeout_seconds)
    return notes.report("policy", time.monotonic() - began)


def _prompts(options: PolicyOptions, notes: Findings) -> list[Sample]:
    count = max(1, math.ceil(options.samples / options.group_size))
    if options.data:
        return read_prompts(options.data, options.fields, count)
    notes.not_seen.append("your own prompts (--data FILE): built-in ones were used")
    return built_in_prompts(count)


def _run(policy: Loaded, prompts: Sequence[Sample], options: PolicyOptions, notes: Findings, deadline: float) -> None:
    try:
        batch = generate(
            policy, prompts, group_size=options.group_size, max_tokens=options.max_tokens, seed=options.seed,
            deadline=deadline - (1 - SAMPLING_SHARE) * options.timeout_seconds,
        )  # fmt: skip
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise SentinelError(f"{policy.name} cannot generate: {' '.join(str(error).split())[:200]}") from error
        notes.broken(
            "non-finite-logits", "sampling met NaN or infinite probabilities",
            "see the weights, the dtype (float16 overflows at 65,504), and what precedes the output layer",
        )  # fmt: skip
        return
    until = deadline - _LAST_SECONDS
    # padding's samples take three passes each: they get a fifth of what is left
    apart = 0.2 * (until - time.monotonic())
    batch, own, each = affordable(policy, batch, until - apart, _PASSES + bool(options.reference))
    padded = max(1, int(apart / (3 * each)))
    rewards = _rewards(batch, prompts, options, notes, until)
    reference = _reference(policy, batch, options, notes)
    judged.samples(notes, policy, batch, len(prompts) * options.group_size)
    judged.numbers(notes, policy, batch, own)
    judged.own_samples(notes, policy, batch, own)
    judged.precision(notes, policy, batch, own, reference)
    judged.padding(notes, policy, padding_gap(policy, batch, padded))
    judged.reference_gap(notes, batch, own, reference, _is_trained(policy, options), policy.dtype)
    judged.coefficient(notes, batch, own, reference, rewards, options)
    _step(policy, batch, own, reference, rewards, options, notes)
    for second in options.second:
        if time.monotonic() > until:
            notes.not_seen.append(f"log-probs of {second}: the time was up (--timeout)")
            continue
        compare_engine(notes, policy, batch, own, second, options)
    if options.reference:
        notes.not_seen.append("whether the trainer runs the reference without autograd (snapshot save --from a "
                              "function that builds the trainer)")  # fmt: skip
    if not options.second:
        notes.not_seen.append("log-probs of another engine (--second DTYPE, ATTENTION or FILE.jsonl)")


def _step(
    policy: Loaded, batch: Batch, own: Scores, reference: Scores | None, rewards: torch.Tensor | None,
    options: PolicyOptions, notes: Findings,
) -> None:  # fmt: skip
    """One forward and backward as in training; nothing is updated."""
    size = batch.group_size
    made_up = torch.tensor([1.0, -1.0]).repeat((len(batch.samples) + 1) // 2)[: len(batch.samples)]
    weights = advantages(rewards, size) if rewards is not None else made_up
    policy.model.zero_grad(set_to_none=True)
    terms = backward(
        policy, batch, weights, own.logp_BC, reference.logp_BC if reference else None,
        options.beta if reference else 0.0,
    )  # fmt: skip
    judged.step(notes, policy, terms, weights, rewards, size)
    policy.model.zero_grad(set_to_none=True)


def _reference(
    policy: Loaded, batch: Batch, options: PolicyOptions, notes: Findings
) -> Scores | None:  # fmt: skip
    if not options.reference:
        notes.not_seen.append("KL to the reference, and kl_coef (--reference DIR)")
        return None
    loaded = load_policy(
        options.reference, dtype=options.dtype, device=str(policy.device), attention=options.attention,
        role="reference",
    )  # fmt: skip
    notes.faults += [replace(one, where=f"reference {one.where}") for one in loaded.faults]
    if loaded.faults:
        notes.not_seen.append("KL to the reference, and kl_coef: its weights are not whole")
        return None
    if loaded.vocabulary != policy.vocabulary:
        rows = f"the policy has {policy.vocabulary:,} output rows, the reference {loaded.vocabulary:,}"
        used = max(len(policy.tokenizer), len(loaded.tokenizer))
        if used > min(loaded.vocabulary, policy.vocabulary):
            raise SentinelError(f"{options.reference}: {rows}, the tokenizer has {used:,} tokens: KL would compare "
                                "other tokens with each other; use a reference of the policy's vocabulary")  # fmt: skip
        notes.facts["output_rows"] = {"policy": policy.vocabulary, "reference": loaded.vocabulary, "tokens": used}
        notes.notes.append(f"{rows}; the tokenizer's {used:,} tokens are in both, the rest is padding, which moves "
                           "KL a little where its logits are not far below the others")  # fmt: skip
    if int(batch.ids_BT.max()) >= loaded.vocabulary:
        notes.not_seen.append(f"KL to the reference, and kl_coef: the policy sampled tokens beyond the reference's "
                              f"{loaded.vocabulary:,} rows")  # fmt: skip
        return None
    scored: Scores = score(loaded, batch)
    return scored


def _kinds(target: str, options: PolicyOptions) -> None:
    """Refuse what is no causal language model, or no reference of this policy, before anything is loaded."""
    policy, reference = (Path(one).expanduser() for one in (target, options.reference or "."))
    if policy.is_dir():
        require_causal(policy, "policy")
    if options.reference and reference.is_dir():
        require_causal(reference, "reference")
        if policy.is_dir():
            require_same_kind(policy, reference)


def _rewards(
    batch: Batch, prompts: Sequence[Sample], options: PolicyOptions, notes: Findings, until: float
) -> torch.Tensor | None:  # fmt: skip
    target = options.reward or options.reward_model
    if not target:
        notes.not_seen.append("rewards, advantages and kl_coef (--reward MODULE:FUNCTION or --reward-model DIR)")
        return None
    seconds = max(1.0, min(_REWARD_SECONDS, (until - time.monotonic()) / 2))
    trial = Trial(load_target(target), time.monotonic() + seconds)
    try:
        values = trial.score(batch.samples)
        if options.reward_model and not options.reward:
            judged.reward_head(notes, head_loss(trial, [one for one in prompts if one.completion]))
    except OutOfTime:
        notes.cannot_tell("timeout", f"{target} did not score the samples in {seconds:.0f} s", "see check reward")
        return None
    if graph := trial.graph_kept():
        notes.doubtful("keeps-graph", f"{target}: {graph}", KEEPS_GRAPH)
    bad = [one for one in values if one is None or not math.isfinite(one)]
    if bad:
        raised = next(iter([*map(str, trial.misfits.values()), *trial.raised.values()]), "")
        notes.broken(
            "reward-not-finite", f"{len(bad)} of {len(values)} lack a finite reward ({target}) {raised}".strip(),
            "grpo-sentinel check reward says more; one NaN makes the advantages of its group NaN",
        )  # fmt: skip
        return None
    return torch.tensor([float(one or 0.0) for one in values])


def _is_trained(policy: Loaded, options: PolicyOptions) -> bool:
    if options.trained is not None or policy.directory is None:
        return bool(options.trained)
    try:
        state = json.loads((policy.directory / "trainer_state.json").read_text(encoding="utf-8"))
        return int(state.get("global_step", 0)) > 0
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def _facts(role: str, path: Path) -> TokenizerFacts:
    """What the files say; the dtype of an adapter is its base model's."""
    base = adapter_base(path)
    found = read_facts(role, tokenizer_of(path, base))
    saved = read_json(base / "config.json") if base is not None else {}
    return replace(found, dtype=found.dtype or str(saved.get("dtype") or saved.get("torch_dtype") or ""))


def _tokenizers(target: str, options: PolicyOptions, notes: Findings) -> None:
    """Compare the tokenizers' files of policy, reference and reward model, as `check environment` does."""
    named = {"policy": target, "reference": options.reference, "reward": options.reward_model}
    paths = {role: Path(name).expanduser() for role, name in named.items() if name}
    facts = {role: _facts(role, path) for role, path in paths.items() if path.is_dir()}
    found: list[Fault] = [fault for one in facts.values() for fault in own_faults(one)]
    first = facts.get("policy")
    for role, other in facts.items():
        if first is not None and role != "policy":
            found += pair_faults(first, other, same_needed=role == "reference")
    notes.faults += found
    if len(facts) > 1:
        notes.looked_at.append(f"tokenizers and chat templates of {', '.join(facts)}")
    else:
        notes.not_seen.append("whether tokenizers agree (--reference DIR, --reward-model DIR)")


__all__ = ["check"]
