"""Prompts and completions as a trainer lays them out: prompts padded left, completions padded right.

    ids_BT = [pad pad p p p | c c c pad]     mask_BT = [0 0 1 1 1 | 1 1 1 0]     completion_BC: the right part only

Axes: B samples (groups are adjacent), T = P + C tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.live.loading import Loaded
from grpo_sentinel.preflight.reward_model import positions_of, quiet_loading
from grpo_sentinel.preflight.reward_target import Sample

_PROMPTS_AT_ONCE = 4
_SPARE = 12  # positions by which the check of padding makes a batch wider


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B samples of one or more groups; int64 ids, bool masks, on the model's device."""

    samples: tuple[Sample, ...]  # with the completion as text
    ids_BT: torch.Tensor
    mask_BT: torch.Tensor
    width: int  # C: columns of the completions, at the right
    group_size: int
    cut: int = 0  # completions that reached the limit without an end token

    @property
    def completion_BC(self) -> torch.Tensor:
        """Mask of the completions' own tokens."""
        return self.mask_BT[:, -self.width :]

    def first(self, groups: int) -> Batch:
        """The first groups of it."""
        count = groups * self.group_size
        return replace(
            self, samples=self.samples[:count], ids_BT=self.ids_BT[:count], mask_BT=self.mask_BT[:count],
            cut=min(self.cut, count),
        )  # fmt: skip

    def rows(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Parts of at most `size` samples: ids and mask."""
        for start in range(0, len(self.samples), size):
            yield self.ids_BT[start : start + size], self.mask_BT[start : start + size]


def prompt_ids(loaded: Loaded, sample: Sample) -> list[int]:
    """Token ids of a prompt as the trainer makes them: the chat template where there is one, else as plain text."""
    tokenizer = loaded.tokenizer
    chat = bool(sample.prompt[0][0]) and bool(getattr(tokenizer, "chat_template", None))
    if chat:
        messages = [{"role": role, "content": text} for role, text in sample.prompt]
        try:
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # templates raise what they like
            reason = " ".join(str(error).split())[:200]
            raise SentinelError(f"{sample.place}: the chat template of {loaded.name} refuses this prompt: {reason}; "
                                "see grpo-sentinel check data --tokenizer") from error  # fmt: skip
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    else:
        ids = list(tokenizer("\n".join(text for _, text in sample.prompt))["input_ids"])
    if not ids:
        raise SentinelError(f"{sample.place}: the tokenizer of {loaded.name} gives not one token for this prompt; give "
                            "the model's own tokenizer")  # fmt: skip
    return ids


def _require_room(loaded: Loaded, length: int) -> None:
    """Some models have a table of positions: beyond it there is an index error, on a GPU a device-side assert."""
    limit = positions_of(loaded.model)
    if limit and length + _SPARE > limit:
        raise SentinelError(f"{loaded.name}: {length:,} tokens of prompt and completion do not fit into its {limit:,} "
                            "positions; lower --max-tokens, or give shorter prompts")  # fmt: skip


def lay_out(loaded: Loaded, pairs: Sequence[tuple[Sample, list[int], list[int]]], group_size: int) -> Batch:
    """Pad (sample, prompt ids, completion ids) into a batch. Raises `SentinelError` for ids beyond the vocabulary."""
    pad = loaded.tokenizer.pad_token_id or 0
    left = max(len(prompt) for _, prompt, _ in pairs)
    right = max(1, max(len(completion) for _, _, completion in pairs))
    highest = max(max(prompt + completion, default=0) for _, prompt, completion in pairs)
    if highest >= loaded.vocabulary:
        raise SentinelError(
            f"{loaded.name}: token id {highest} is beyond its {loaded.vocabulary:,} rows; the tokenizer is another "
            "model's, or the embedding was not resized"
        )
    ids, mask = [], []
    for _, prompt, completion in pairs:
        before, after = left - len(prompt), right - len(completion)
        ids.append([pad] * before + prompt + completion + [pad] * after)
        mask.append([0] * before + [1] * (len(prompt) + len(completion)) + [0] * after)
    _require_room(loaded, left + right)
    device = loaded.device
    return Batch(
        samples=tuple(sample for sample, _, _ in pairs), ids_BT=torch.tensor(ids, device=device),
        mask_BT=torch.tensor(mask, device=device).bool(), width=right, group_size=group_size,
    )  # fmt: skip


def given_responses(loaded: Loaded, samples: Sequence[Sample], max_tokens: int) -> Batch:
    """Take the responses of a data set as completions, cut to `max_tokens`, each with the end token."""
    tokenizer, pairs = loaded.tokenizer, []
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    for sample in samples:
        completion = list(tokenizer(sample.completion, add_special_tokens=False)["input_ids"]) + end
        pairs.append((sample, prompt_ids(loaded, sample), completion[:max_tokens]))
    return lay_out(loaded, pairs, 1)


def generate(
    loaded: Loaded, prompts: Sequence[Sample], *, group_size: int, max_tokens: int, seed: int, deadline: float,
    greedy: bool = False,
) -> Batch:  # fmt: skip
    """Sample `group_size` completions a prompt from the policy's own distribution: temperature 1, nothing filtered.

    Stops once `time.monotonic()` passes `deadline`, with at least one batch done, its completions cut short if need be.
    """
    torch.manual_seed(seed)
    pairs: list[tuple[Sample, list[int], list[int]]] = []
    cut = 0
    starts = [0, *range(1, len(prompts), _PROMPTS_AT_ONCE)]  # one prompt alone first: it may be all there is time for
    for start, end in zip(starts, [*starts[1:], len(prompts)], strict=True):
        part = prompts[start:end]
        encoded = [(sample, prompt_ids(loaded, sample)) for sample in part]
        layout = lay_out(loaded, [(sample, ids, []) for sample, ids in encoded], 1)
        prompt_BP, mask_BP = layout.ids_BT[:, :-1], layout.mask_BT[:, :-1]
        seconds = max(1.0, deadline - time.monotonic())
        out = _sampled(loaded, prompt_BP, mask_BP, group_size, max_tokens, greedy, seconds)
        for row, tokens in enumerate(out[:, prompt_BP.shape[1] :].tolist()):
            sample, prompt = encoded[row // group_size]
            own, ended = _until_end(loaded, tokens)
            cut += not ended
            text = loaded.tokenizer.decode(own, skip_special_tokens=True)
            pairs.append((replace(sample, completion=text), prompt, own))
        if time.monotonic() > deadline:
            break
    return replace(lay_out(loaded, pairs, group_size), cut=cut)


def _sampled(
    loaded: Loaded, ids_BP: torch.Tensor, mask_BP: torch.Tensor, group_size: int, max_tokens: int, greedy: bool,
    seconds: float,
) -> torch.Tensor:  # fmt: skip
    import transformers
    from transformers import GenerationConfig

    _require_room(loaded, ids_BP.shape[1] + max_tokens)
    wanted: dict[str, Any] = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
    config = GenerationConfig(
        max_new_tokens=max_tokens, max_time=seconds, num_return_sequences=1, pad_token_id=loaded.tokenizer.pad_token_id,
        eos_token_id=sorted(_ends(loaded)) or None, bos_token_id=loaded.tokenizer.bos_token_id, **wanted,
    )  # fmt: skip
    own, loaded.model.generation_config = loaded.model.generation_config, config  # its defaults would leak into ours
    try:
        with torch.no_grad(), quiet_loading(transformers):
            out = loaded.model.generate(
                input_ids=ids_BP.repeat_interleave(group_size, 0),
                attention_mask=mask_BP.repeat_interleave(group_size, 0).long(), generation_config=config,
            )  # fmt: skip
    finally:
        loaded.model.generation_config = own
    return out


def _ends(loaded: Loaded) -> set[int]:
    saved = getattr(getattr(loaded.model, "generation_config", None), "eos_token_id", None)
    known = saved if isinstance(saved, (list, tuple)) else [saved]
    return {int(one) for one in (*known, loaded.tokenizer.eos_token_id) if one is not None}


def _until_end(loaded: Loaded, tokens: list[int]) -> tuple[list[int], bool]:
    ends = _ends(loaded)
    for index, token in enumerate(tokens):
        if token in ends:
            return tokens[: index + 1], True
    return tokens, False


__all__ = ["Batch", "generate", "given_responses", "lay_out", "prompt_ids"]
