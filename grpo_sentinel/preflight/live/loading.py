"""A policy from a directory or from a function of the user's, with its tokenizer and what was wrong in loading it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.model_kind import (
    adapter_base,
    kind_of,
    refuse_random_head,
    require_causal,
    why_not_loaded,
)
from grpo_sentinel.preflight.on_stderr import on_stderr
from grpo_sentinel.preflight.report import Fault
from grpo_sentinel.preflight.reward_model import quiet_loading, tokenizer_of, with_adapter
from grpo_sentinel.preflight.reward_target import load_object

DTYPES = {
    "float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A causal language model in eval mode, ready to be run; `directory` is None when a function built it."""

    name: str
    model: Any
    tokenizer: Any
    directory: Path | None
    faults: tuple[Fault, ...] = ()
    optimizer: Any = None
    notes: tuple[str, ...] = ()

    @property
    def dtype(self) -> str:
        """Dtype of the first floating-point parameter, as "bfloat16"."""
        kinds = [one.dtype for one in self.model.parameters() if one.is_floating_point()]
        return str(kinds[0]).removeprefix("torch.") if kinds else "none"

    @property
    def device(self) -> torch.device:
        """Where its first parameter lies."""
        return next(self.model.parameters()).device

    @property
    def vocabulary(self) -> int:
        """Rows of the output layer, else of config.json."""
        head = self.model.get_output_embeddings() if hasattr(self.model, "get_output_embeddings") else None
        weight = getattr(head, "weight", None)
        return int(weight.shape[0]) if weight is not None else int(self.model.config.vocab_size)


def default_device() -> str:
    """The first CUDA device where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_policy(
    target: str, *, dtype: str = "float32", device: str = "", attention: str = "", role: str = "policy"
) -> Loaded:  # fmt: skip
    """Load from a directory (nothing from a network), or call MODULE:FUNCTION for (model, tokenizer[, optimizer]).

    A directory with an adapter alone is put on its base model, the adapter trainable. Raises `SentinelError` in one
    sentence when there is no such model, or no usable tokenizer.
    """
    path = Path(target).expanduser()
    if path.is_dir():
        loaded = _from_directory(path, attention, role)
        loaded.model.to(DTYPES[dtype])
    else:
        loaded = _from_function(target)
    try:
        if path.is_dir() or device:  # what a user's function built stays where it put it
            loaded.model.to(device or default_device())
    except (RuntimeError, AssertionError) as error:
        raise SentinelError(f"cannot put {target} on {device or default_device()}: {why_not_loaded(error)}") from error
    loaded.model.eval()
    return loaded


def _from_directory(path: Path, attention: str, role: str) -> Loaded:
    try:
        import transformers
    except ImportError as error:
        raise SentinelError(
            f"{path} is a model: this needs torch and transformers: pip install torch transformers"
        ) from error
    extra = {"attn_implementation": attention} if attention else {}
    require_causal(path, role)
    base = adapter_base(path)
    try:
        with on_stderr(), quiet_loading(transformers):
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                str(base or path), local_files_only=True, trust_remote_code=False, output_loading_info=True, **extra
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(tokenizer_of(path, base)), local_files_only=True, trust_remote_code=False
            )
            if base is not None:
                model = with_adapter(model, path, trainable=True)
    except SentinelError:
        raise
    except Exception as error:
        raise SentinelError(f"{path} cannot be loaded as a causal language model: {why_not_loaded(error)}") from error
    missing = sorted(info.get("missing_keys") or ())
    if role == "reference" or "ForCausalLM" not in kind_of(path).architecture:
        refuse_random_head(path, set(missing) & _heads(model), role, "a language-model head")
    return Loaded(
        name=str(path), model=model, tokenizer=tokenizer, directory=path, notes=_pad(tokenizer, str(path)),
        faults=(*_missing(str(path), missing), *_non_finite(str(path), model)),
    )  # fmt: skip


def _heads(model: Any) -> set[str]:
    """Names of the output layer's parameters."""
    head = model.get_output_embeddings()
    own = {id(one) for one in head.parameters()} if head is not None else set()
    return {name for name, one in model.named_parameters(remove_duplicate=False) if id(one) in own}


def _from_function(target: str) -> Loaded:
    if ":" not in target:
        raise SentinelError(f"there is no model directory {target}; give one, or MODULE:FUNCTION that builds the model")
    built = call_builder(target)
    if isinstance(built, Mapping):
        parts = [built.get(name) for name in ("model", "tokenizer", "optimizer")]
    else:
        parts = [*(built if isinstance(built, (tuple, list)) else (built,)), None, None][:3]
    model, tokenizer, optimizer = parts
    if not isinstance(model, torch.nn.Module) or tokenizer is None:
        raise SentinelError(f"{target} must return (model, tokenizer) or (model, tokenizer, optimizer)")
    model = (
        getattr(model, "_orig_mod", None) or model
    )  # of torch.compile: to compile for a few passes would take minutes
    if getattr(model, "generation_config", None) is None:
        raise SentinelError(f"{target} built a {type(model).__name__}, which cannot generate: give a causal language "
                            "model with its head")  # fmt: skip
    if any(one.is_meta for _, one in model.named_parameters()):
        raise SentinelError(f"{target} built a model whose weights are on the meta device: load them before it returns")
    return Loaded(
        name=target, model=model, tokenizer=tokenizer, directory=None, optimizer=optimizer,
        notes=_pad(tokenizer, target),
        faults=tuple(_non_finite(target, model)),
    )  # fmt: skip


def call_builder(target: str) -> Any:
    """Call MODULE:FUNCTION without arguments; what it prints goes to stderr. Raises `SentinelError`."""
    function = load_object(target)
    if not callable(function):
        raise SentinelError(f"{target} is {type(function).__name__}, not a function")
    try:
        with on_stderr():
            return function()
    except Exception as error:
        raise SentinelError(f"{target} raised {why_not_loaded(error)}") from error


def _pad(tokenizer: Any, name: str) -> tuple[str, ...]:
    """Give a tokenizer without padding token its end token for it, as trainers do; what is worth knowing about that."""
    if getattr(tokenizer, "pad_token_id", None) is not None:
        return ()
    told = f"{name}: the tokenizer has no padding token"
    if not getattr(tokenizer, "eos_token", None):
        return (f"{told} and no end token: trainers refuse it; set pad_token",)
    tokenizer.pad_token = tokenizer.eos_token
    return (f"{told}: its end token {tokenizer.eos_token} stands in here, as in TRL; where ends are masked as padding "
            "the policy never learns to stop: give it a pad_token of its own",)  # fmt: skip


def _missing(name: str, missing: Sequence[str]) -> list[Fault]:
    if not missing:
        return []
    return [
        Fault(
            level=Level.BROKEN, code="weights-missing", where=name, count=len(missing), examples=tuple(missing[:3]),
            message=f"{len(missing)} tensors are not in the checkpoint and were made at random",
            remedy="the weights were saved under other names, or not at all: see the writer of the checkpoint",
        )
    ]  # fmt: skip


def _non_finite(name: str, model: Any) -> list[Fault]:
    bad = [key for key, one in model.named_parameters() if not bool(torch.isfinite(one).all())]
    if not bad:
        return []
    return [
        Fault(
            level=Level.BROKEN, code="non-finite-weights", where=name, count=len(bad), examples=tuple(bad[:3]),
            message=f"{len(bad)} tensors hold NaN or infinite numbers",
            remedy="use another checkpoint; grpo-sentinel resume-point finds the last good one",
        )
    ]  # fmt: skip


__all__ = ["DTYPES", "Loaded", "call_builder", "default_device", "load_policy"]
