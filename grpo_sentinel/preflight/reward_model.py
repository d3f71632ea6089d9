"""A reward model from a directory: how it was loaded, the state it is in (S9-S11, S14), and its scores.

The state is read by the agent's own probe (`agent.probes.model_state`), so that the check before a run and the watch
during it mean the same. torch and transformers are imported here only when a model is named.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.model_kind import (
    adapter_base,
    kind_of,
    refuse_pointers,
    refuse_random_head,
    why_not_loaded,
)
from grpo_sentinel.preflight.on_stderr import on_stderr
from grpo_sentinel.preflight.report import Fault
from grpo_sentinel.preflight.reward_target import Sample

_STATE = "grpo_sentinel.agent.probes.model_state"
_NAME = "model"
_POSITIONS = re.compile(r"(?:position_embeddings|embed_positions|wpe)$")  # tables: beyond their rows there is nothing
# of the range of scores: padding and batch size change the order of sums
_TOLERANCE = {"float64": 1e-6, "float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
_B, _D = Level.BROKEN, Level.DOUBTFUL
_STATES = (
    ("model_training_modules", "training-mode", _B, "modules are in training mode", "call model.eval()"),
    ("model_active_dropouts", "dropout", _B, "dropouts are active", "call model.eval()"),
    ("model_trainable_parameters", "not-frozen", _D, "parameters are trainable", "call model.requires_grad_(False)"),
    ("model_adapter_mismatch", "adapter", _B, "adapters are not active", "load the adapter and do not disable it"),
    ("model_head_bias", "head-bias", _D, "is the bias of the head", "zero the bias, or centre the rewards"),
)  # fmt: skip


class ModelScorer:
    """Scores with a sequence classifier; `untouched`: its modes are the loader's and say nothing of the trainer's."""

    is_model = True
    attached = False  # it scores in inference mode

    def __init__(
        self, name: str, model: Any, tokenizer: Any, *, untouched: bool, load_faults: Sequence[Fault] = ()
    ) -> None:
        self.name = name
        self.model, self._tokenizer = model, tokenizer
        self.untouched = untouched
        self.load_faults = tuple(load_faults)
        self._torch = import_module("torch")
        kinds = [str(one.dtype).removeprefix("torch.") for one in model.parameters() if one.is_floating_point()]
        self._positions = positions_of(model)
        self.tolerance = _TOLERANCE.get(kinds[0] if kinds else "", _TOLERANCE["float32"])

    def score(self, samples: Sequence[Sample]) -> list[Any]:
        """Score templated prompt and completion, padded right to the longest as TRL does, without autograd."""
        texts = [self._text(sample) for sample in samples]
        batch = self._tokenizer(
            texts,
            return_tensors="pt",
            padding=len(texts) > 1,
            padding_side="right",
            truncation=False,
            add_special_tokens=False,
        )
        rows = self.model.get_input_embeddings().weight.shape[0]
        if (highest := int(batch["input_ids"].max())) >= rows:
            raise SentinelError(f"{self.name}: token id {highest} is beyond its {rows:,} rows; the tokenizer is "
                                "another model's, or the embedding was not resized")  # fmt: skip
        if self._positions and batch["input_ids"].shape[1] > self._positions:
            raise ValueError(f"{batch['input_ids'].shape[1]:,} tokens, and its positions end at {self._positions:,}")
        device = next(self.model.parameters()).device
        given = {key: value.to(device) for key, value in batch.items() if key != "token_type_ids"}
        with self._torch.inference_mode():
            logits = self.model(**given).logits
        return [float(value) for value in logits[:, 0].float().tolist()]

    def _text(self, sample: Sample) -> str:
        if getattr(self._tokenizer, "chat_template", None) and sample.prompt and sample.prompt[0][0]:
            chat = [{"role": role, "content": text} for role, text in sample.prompt]
            chat.append({"role": "assistant", "content": sample.completion})
            return str(self._tokenizer.apply_chat_template(chat, tokenize=False))
        return "".join(text for _, text in sample.prompt) + sample.completion

    def state(self) -> dict[str, float]:
        """Read modes, dropouts, trainable parameters, adapters and head bias with the agent's probe."""
        observe = import_module(_STATE).observe_model
        adapted = hasattr(self.model, "peft_config")
        found = observe(_NAME, self.model, adapters=True if adapted else None)
        return {name.partition("[")[0].rpartition(".")[2]: value for name, value in found.items()}

    def state_faults(self, state: dict[str, float], max_head_bias: float) -> list[Fault]:
        """Judge that state; frozen is not judged for a model that no trainer has prepared."""
        out = list(self.load_faults)
        for key, code, level, text, remedy in _STATES:
            value = state.get(key, 0.0)
            limit = max_head_bias if code == "head-bias" else 0.0
            if value > limit and not (self.untouched and code == "not-frozen"):
                out.append(
                    Fault(level=level, code=code, where=self.name, message=f"{value:,.4g} {text}", remedy=remedy)
                )
        return out


def load_model(directory: Path) -> ModelScorer:
    """Load a reward model and its tokenizer from a directory, nothing from a network. Raises `SentinelError`."""
    try:
        transformers = import_module("transformers")
        torch = import_module("torch")
    except ImportError as error:
        raise SentinelError(
            f"{directory} is a model: checking it needs torch and transformers, pip install torch transformers"
        ) from error
    refuse_pointers(directory)
    base = adapter_base(directory)
    try:
        with on_stderr(), quiet_loading(transformers):
            model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
                str(base or directory), local_files_only=True, trust_remote_code=False, output_loading_info=True,
                **({"num_labels": 1} if base else {}),
            )  # fmt: skip
            missing = set(info.get("missing_keys") or ())
            if base is not None:
                model = with_adapter(model, directory, trainable=False)
                missing -= _brought(model, missing)
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(tokenizer_of(directory, base)), local_files_only=True, trust_remote_code=False
            )
    except SentinelError:
        raise
    except Exception as error:
        raise SentinelError(f"{directory} cannot be loaded as a reward model: {why_not_loaded(error)}") from error
    if not kind_of(directory).classifies:
        prefix = f"{getattr(model, 'base_model_prefix', '') or 'model'}."
        heads = [name for name in missing if not name.startswith(prefix)]
        refuse_random_head(directory, heads, "reward model", "a head that scores (a judge that writes its score needs "
                           "a function of yours)")  # fmt: skip
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if torch.cuda.is_available():
        model.to("cuda")
    return ModelScorer(
        str(directory),
        model,
        tokenizer,
        untouched=True,
        load_faults=_load_faults(directory, model, tokenizer, sorted(missing)),
    )


def positions_of(model: Any) -> int:
    """Rows of its table of positions, beyond which there is nothing; 0 where positions are computed."""
    tables = (one for name, one in model.named_modules() if _POSITIONS.search(name))
    return min((one.num_embeddings for one in tables if hasattr(one, "num_embeddings")), default=0)


@contextlib.contextmanager
def quiet_loading(transformers: Any) -> Iterator[None]:
    """Keep progress bars and reports of loading off the screen: what they say is judged and said by the check."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled() if hasattr(logging, "is_progress_bar_enabled") else True
    level = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def with_adapter(model: Any, directory: Path, *, trainable: bool) -> Any:
    """Put the adapter in `directory` on its base model. Raises `SentinelError` without peft."""
    try:
        peft = import_module("peft")
    except ImportError as error:
        raise SentinelError(f"{directory} holds an adapter: this needs peft: pip install peft") from error
    return peft.PeftModel.from_pretrained(model, str(directory), is_trainable=trainable)


def tokenizer_of(directory: Path, base: Path | None) -> Path:
    """Where the tokenizer lies: beside an adapter, else beside its base model."""
    own = any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    return directory if own or base is None else base


def _brought(model: Any, missing: set[str]) -> set[str]:
    """Those of the base model's missing tensors that the adapter brought (its `modules_to_save`)."""
    wrapped = [name for name, part in model.named_modules() if hasattr(part, "modules_to_save")]
    return {one for one in missing if any(name.endswith(one.rpartition(".")[0]) for name in wrapped)}


def _load_faults(directory: Path, model: Any, tokenizer: Any, missing: Sequence[str]) -> list[Fault]:
    out = []

    def broken(code: str, message: str, remedy: str, examples: Sequence[str] = ()) -> None:
        out.append(Fault(level=Level.BROKEN, code=code, where=str(directory), message=message, remedy=remedy,
                         examples=tuple(examples)))  # fmt: skip

    if missing:
        broken("weights-missing", f"{len(missing)} tensors are not in the checkpoint and were made at random",
               "this is not a trained reward model, or its head was saved under another name", missing[:3])  # fmt: skip
    if model.config.num_labels != 1:
        broken("not-one-score", f"it gives {model.config.num_labels} numbers for a text, not one",
               "train it with num_labels=1; only the first number is looked at here")  # fmt: skip
    if getattr(model.config, "pad_token_id", None) is None:
        broken("no-padding-token", "its config names no pad_token_id, so it cannot tell where a padded text ends",
               "set pad_token_id in config.json to the tokenizer's")  # fmt: skip
        model.config.pad_token_id = tokenizer.pad_token_id  # so that the rest can be looked at
    elif tokenizer.pad_token_id != model.config.pad_token_id:
        broken("padding-token", f"the tokenizer pads with {tokenizer.pad_token_id}, the model expects "
               f"{model.config.pad_token_id}", "give both the same pad_token_id")  # fmt: skip
    weights = [name for name, one in model.named_parameters() if not bool(one.isfinite().all())]
    if weights:
        broken("non-finite-weights", f"{len(weights)} tensors hold NaN or infinite numbers",
               "use another checkpoint; grpo-sentinel check checkpoint names them all", weights[:3])  # fmt: skip
    return out


__all__ = ["ModelScorer", "load_model", "positions_of", "quiet_loading", "tokenizer_of", "with_adapter"]
