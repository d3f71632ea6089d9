"""What kind of model a directory holds, by its config.json: asked before anything is loaded or run. No torch here.

A causal language model, a classifier and a base model without a head are loaded as one another without an error: what
is missing is made at random. Each is refused in one sentence where another kind is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.environment_host import read_json
from grpo_sentinel.preflight.git_lfs import TOLD, is_pointer

_CLASSIFIER = re.compile(r"For(?:\w*Classification|QuestionAnswering)$|Reward(?:Model)?$")
_ADAPTER = "adapter_config.json"
_LARGE = (".safetensors", ".bin", ".json", ".model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """`architecture` is the class that saved it; "" and None = not said."""

    architecture: str
    model_type: str
    rows: int | None  # of the embedding

    @property
    def classifies(self) -> bool:
        """Whether it was saved as a classifier or reward model."""
        return bool(_CLASSIFIER.search(self.architecture))


def kind_of(directory: Path) -> ModelKind:
    """Read it; of an adapter that of its base model, where that is a directory."""
    config = read_json((adapter_base(directory) or directory) / "config.json")
    inner = config.get("text_config")
    names = config.get("architectures")
    rows = config.get("vocab_size") or (inner.get("vocab_size") if isinstance(inner, dict) else None)
    return ModelKind(
        architecture=str(names[0]) if isinstance(names, list) and names else "",
        model_type=str(config.get("model_type") or ""), rows=rows if isinstance(rows, int) else None,
    )  # fmt: skip


def adapter_base(directory: Path) -> Path | None:
    """The base model of a directory that holds an adapter alone; None where it is a whole model.

    Raises `SentinelError` when the base model is no directory here: nothing is downloaded.
    """
    if not (directory / _ADAPTER).is_file() or (directory / "config.json").is_file():
        return None
    name = str(read_json(directory / _ADAPTER).get("base_model_name_or_path") or "")
    base = next((one for one in (Path(name).expanduser(), directory / name) if name and one.is_dir()), None)
    if base is None:
        raise SentinelError(f"{directory} holds an adapter of {name or 'no named model'}, which is no directory here; "
                            "give MODULE:FUNCTION that puts it on its base model")  # fmt: skip
    return base


def refuse_pointers(directory: Path) -> None:
    """Refuse a directory whose weights or tokenizer were never fetched. Raises `SentinelError`."""
    for path in sorted(directory.glob("*")):
        if path.suffix in _LARGE and is_pointer(path):
            raise SentinelError(f"{path} is {TOLD}")


def require_causal(directory: Path, role: str) -> None:
    """Refuse a classifier where a causal language model is needed. Raises `SentinelError`."""
    refuse_pointers(directory)
    kind = kind_of(directory)
    if kind.classifies:
        raise SentinelError(f"{role} {directory} is a {kind.architecture}: a classifier has no language-model head and "
                            f"cannot be a {role}; a reward model goes to --reward-model or check reward")  # fmt: skip


def refuse_random_head(directory: Path, missing: Iterable[str], role: str, need: str) -> None:
    """Refuse a model whose head was made at random in loading. Raises `SentinelError`."""
    lacking = sorted(missing)
    if lacking:
        kind = kind_of(directory).architecture or "model"
        raise SentinelError(f"{role} {directory} is a {kind} without {need}: {lacking[0]} is not in its files and was "
                            f"made at random; give a directory that was saved with it")  # fmt: skip


def why_not_loaded(error: BaseException) -> str:
    """What a loader of models raised, in one line; where it points to a report that nobody saw, what that says."""
    text = " ".join(str(error).split())[:200]
    if "ignore_mismatched_sizes" in text:
        return "its weights have other shapes than config.json says: the two files are of different models"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def require_same_kind(policy: Path, reference: Path) -> None:
    """Refuse a reference of another architecture: its KL would compare two models. Raises `SentinelError`."""
    first, other = kind_of(policy), kind_of(reference)
    if first.model_type and other.model_type and first.model_type != other.model_type:
        raise SentinelError(f"reference {reference} is a {other.model_type} model, the policy {policy} a "
                            f"{first.model_type} model: the reference is the policy before training, or a copy of "
                            "it")  # fmt: skip


__all__ = [
    "ModelKind", "adapter_base", "kind_of", "refuse_pointers", "refuse_random_head", "require_causal",
    "require_same_kind", "why_not_loaded",
]  # fmt: skip
