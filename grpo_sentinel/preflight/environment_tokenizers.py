"""Do the tokenizers of policy, reference and reward model agree (S41)? Their files are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.environment_host import is_object, read_json
from grpo_sentinel.preflight.git_lfs import TOLD, is_pointer
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import Fault

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """What the files of one model directory say."""

    name: str
    special: Mapping[str, str]  # role -> token
    ids: Mapping[str, int]  # role -> id by the tokenizer
    model_ids: Mapping[str, frozenset[int]]  # role -> ids by config.json and generation_config.json
    padding_side: str  # "" = not said
    truncation_side: str
    template: str  # SHA-256 of the chat template, "" = none
    vocabulary: str  # SHA-256 of token -> id, "" = no tokenizer.json
    size: int  # highest id + 1
    model_size: int | None  # rows of the embedding by config.json
    dtype: str
    kind: str  # class that saved it


def read_facts(name: str, directory: Path) -> TokenizerFacts:
    """Read them. Raises `SentinelError` when there is no tokenizer."""
    saved = read_json(directory / "tokenizer_config.json")
    config = read_json(directory / "config.json")
    generation = read_json(directory / "generation_config.json")
    tokenizer: dict[str, Any] = read_json(directory / "tokenizer.json")
    for file in ("tokenizer_config.json", "config.json", "generation_config.json", "tokenizer.json"):
        if is_pointer(directory / file):
            raise SentinelError(f"{directory / file} is {TOLD}")
        if (directory / file).is_file() and not is_object(directory / file):
            raise SentinelError(f"{directory / file} ({name}) holds no JSON object: it is torn, or another file; write "
                                "it again")  # fmt: skip
    if not saved and not tokenizer:
        raise SentinelError(f"{directory} ({name}) holds no tokenizer; give a model directory")
    vocabulary = _vocabulary(tokenizer)
    marks: dict[str, Any] = {
        **read_json(directory / "special_tokens_map.json"),
        **{k: v for k, v in saved.items() if v is not None},
    }
    special = {role: _text(marks.get(role)) for role in _SPECIAL if _text(marks.get(role))}
    return TokenizerFacts(
        name=name,
        special=special,
        ids={role: vocabulary[text] for role, text in special.items() if text in vocabulary},
        model_ids={role: _ids(config.get(f"{role}_id")) | _ids(generation.get(f"{role}_id")) for role in _SPECIAL},
        padding_side=str(saved.get("padding_side") or ""),
        truncation_side=str(saved.get("truncation_side") or ""),
        template=_template(directory, saved),
        vocabulary=_digest(json.dumps(sorted(vocabulary.items()))) if vocabulary else "",
        size=max(vocabulary.values(), default=-1) + 1,
        model_size=_size(config),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or ""),
        kind=str(saved.get("tokenizer_class") or ""),
    )


def _vocabulary(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    model = tokenizer.get("model") or {}
    raw = model.get("vocab") if isinstance(model, dict) else None
    out: dict[str, int] = {}
    if isinstance(raw, dict):
        out = {str(token): int(number) for token, number in raw.items()}
    elif isinstance(raw, list):  # unigram: [token, score] in the order of ids
        out = {str(pair[0]): index for index, pair in enumerate(raw) if pair}
    for added in tokenizer.get("added_tokens") or ():
        out[str(added.get("content"))] = int(added.get("id", -1))
    return out


def _text(token: Any) -> str:
    return str(token.get("content") or "") if isinstance(token, dict) else str(token or "")


def _ids(value: object) -> frozenset[int]:
    return frozenset(one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int))


def _size(config: Mapping[str, Any]) -> int | None:
    inner = config.get("text_config")
    size = config.get("vocab_size") or (inner.get("vocab_size") if isinstance(inner, dict) else None)
    return size if isinstance(size, int) else None


def _template(directory: Path, saved: Mapping[str, Any]) -> str:
    try:
        return _digest((directory / "chat_template.jinja").read_text(encoding="utf-8").strip())
    except OSError:
        template = saved.get("chat_template")
    return _digest(template.strip() if isinstance(template, str) else json.dumps(template)) if template else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def own_faults(one: TokenizerFacts) -> list[Fault]:
    """Judge one directory by itself: tokenizer against its own model."""
    out = []
    if one.model_size is not None and one.size > one.model_size:
        out.append(
            _fault(
                Level.BROKEN,
                "vocabulary",
                one.name,
                f"the tokenizer gives ids up to {one.size - 1:,}, the "
                f"model has {one.model_size:,} rows: an index error or a device-side assert",
                "resize the embedding, or take the model's own tokenizer",
            )
        )
    for role, number in one.ids.items():
        known = one.model_ids.get(role) or frozenset()
        if known and number not in known:
            what = "generation never stops at it" if role == "eos_token" else "masks and padding differ"
            out.append(
                _fault(
                    Level.BROKEN,
                    "special-token-id",
                    one.name,
                    f"{role} {one.special[role]} is {number} for the "
                    f"tokenizer and {', '.join(map(str, sorted(known)))} for the model: {what}",
                    "write the same id into config.json and generation_config.json",
                )
            )
    return out


def version_faults(one: TokenizerFacts, transformers: str | None) -> list[Fault]:
    """Judge the class that saved it against the transformers that is installed."""
    if one.kind != "TokenizersBackend" or transformers is None or not transformers.startswith(("3.", "4.")):
        return []
    message = f"its tokenizer was saved by transformers 5 ({one.kind}), which transformers {transformers} does not know"
    remedy = "install transformers 5, or load it as PreTrainedTokenizerFast and save it again"
    return [_fault(Level.BROKEN, "tokenizer-class", one.name, message, remedy)]


def pair_faults(policy: TokenizerFacts, other: TokenizerFacts, *, same_needed: bool) -> list[Fault]:
    """Judge two against each other; a reference must be equal, a reward model may have a tokenizer of its own."""
    level = Level.BROKEN if same_needed else Level.DOUBTFUL
    out = []

    def differs(code: str, what: str, first: object, second: object, remedy: str) -> None:
        if first != second:
            shown = f": {first} and {second}" if not isinstance(first, str) or len(first) < 40 else ""
            out.append(
                _fault(level, code, other.name, f"{policy.name} and {other.name} differ in {what}{shown}", remedy)
            )

    same = "use the tokenizer of the policy for both"
    if same_needed:
        differs("vocabulary-differs", "vocabulary", policy.vocabulary, other.vocabulary, same)
        differs("special-tokens", "special tokens", dict(policy.special), dict(other.special), same)
        differs("chat-template", "chat template", policy.template, other.template, same)
        differs("padding-side", "padding side", policy.padding_side or "right", other.padding_side or "right", same)
        differs(
            "truncation-side",
            "truncation side",
            policy.truncation_side or "right",
            other.truncation_side or "right",
            same,
        )
        differs(
            "dtype", "dtype", policy.dtype, other.dtype, "load both in the same dtype: KL is not 0 at the start else"
        )
    elif policy.template and not other.template:
        out.append(
            _fault(
                level,
                "chat-template",
                other.name,
                f"{other.name} has no chat template, {policy.name} has one",
                "it scores text in another form than it was trained on: save its template with it",
            )
        )
    return out


def _fault(level: Level, code: str, where: str, message: str, remedy: str) -> Fault:
    return Fault(
        level=level,
        code=code,
        where=where,
        message=f"{where}: {message}" if where not in message else message,
        remedy=remedy,
    )


__all__ = ["TokenizerFacts", "own_faults", "pair_faults", "read_facts", "version_faults"]
