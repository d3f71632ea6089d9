"""What `check reward` scores with: a reward function as TRL, verl or a person writes it, or a reward model.

Naming a target runs its code, as the trainer would. Whatever it prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_shapes import Messages, joined
from grpo_sentinel.preflight.graph_watch import needs_gradient
from grpo_sentinel.preflight.on_stderr import on_stderr
from grpo_sentinel.preflight.telling import tell
from grpo_sentinel.wording import counted

_ANSWER_NAMES = ("answer", "ground_truth", "solution", "label", "reference", "gold")
_NO_RETURN = "it has no return, or one without a value: return the list of rewards"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One thing to score: prompt, completion, and the other columns of its row."""

    prompt: Messages
    completion: str
    answer: str = ""
    place: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)


class Misfit(TypeError):
    """A function that cannot be called with this data, or returns what is no reward for each completion."""

    def __init__(self, code: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.code, self.remedy = code, remedy


class Scorer(Protocol):
    """Scores a batch: one number for each sample, None where the function abstains."""

    name: str
    is_model: bool
    tolerance: float  # of the range: what the order of sums may move a score of the same input
    attached: bool  # a score came as a tensor that needs a gradient

    def score(self, samples: Sequence[Sample]) -> list[Any]:
        """Score; raises what the target raises."""
        ...


class FunctionScorer:
    """Calls a function with what its parameters ask for.

    completions (TRL): all at once, columns as lists by name. queries (OpenRLHF): all at once with prompts and labels.
    solution_str (verl): one at a time with data_source, ground_truth and extra_info. Anything else: one at a time,
    (prompt, completion[, answer]) by these names or, where it has others, in that order.
    """

    is_model = False
    tolerance = 0.0

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.attached = False
        self._function = function
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            parameters = inspect.signature(lambda prompt, completion: None).parameters
        self._names = tuple(
            name for name, one in parameters.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        )
        self._any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        self._positional = any(one.kind is one.POSITIONAL_ONLY for one in parameters.values())
        self._needed = tuple(name for name in self._names if parameters[name].default is inspect.Parameter.empty)
        self.wants_answer = next((name for name in self._needed if name in (*_ANSWER_NAMES, "labels")), "")

    def score(self, samples: Sequence[Sample]) -> list[Any]:
        """Score a batch in the function's own convention."""
        if "completions" in self._names or (self._any and not self._names):
            return self._batch(samples)
        if "queries" in self._names:
            return self._openrlhf(samples)
        one = self._verl if "solution_str" in self._names else self._single
        return [one(sample) for sample in samples]

    def _batch(self, samples: Sequence[Sample]) -> list[Any]:
        chat = bool(samples) and bool(samples[0].prompt) and bool(samples[0].prompt[0][0])
        given: dict[str, Any] = {
            "prompts": [_prompt(sample) for sample in samples],
            "completions": [
                [{"role": "assistant", "content": one.completion}] if chat else one.completion for one in samples
            ],
            "completion_ids": [list(sample.completion.encode("utf-8", "replace")) for sample in samples],
            "trainer_state": None, "log_extra": None, "log_metric": None,
        }  # fmt: skip
        for column in {name for sample in samples for name in sample.columns} - {"prompt", "completion"}:
            given.setdefault(column, [sample.columns.get(column) for sample in samples])
        self._complete(given, samples)
        wanted = given if self._any else {name: given[name] for name in self._names if name in given}
        return self._all(self._call(**wanted), len(samples))

    def _complete(self, given: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        """Refuse to call it without an argument that it needs: the trainer passes the data's columns by name."""
        lacking = [name for name in self._needed if name not in given]
        if lacking:
            have = ", ".join(columns_of(samples)) or "none"
            raise Misfit(
                "missing-column", f"it needs {', '.join(lacking)}, and the data has no such column (it has {have})",
                "rename the column or the argument, or give it a default: the trainer passes columns by name",
            )  # fmt: skip

    @staticmethod
    def _all(out: Any, count: int) -> list[Any]:
        """The rewards of a batch: anything that a trainer can iterate over."""
        try:
            values = None if isinstance(out, (str, bytes, Mapping)) else list(out)
        except TypeError:  # None, a number, a tensor without an axis
            values = None
        if values is None:
            remedy = _NO_RETURN if out is None else (
                "return the list itself, not a mapping that holds it" if isinstance(out, Mapping)
                else "return a number for each completion: one for the whole batch says nothing about any of them"
            )  # fmt: skip
            raise Misfit("no-list", f"it returned {_kind(out)}, and a list with one reward for each of {count} "
                         "completions is needed", remedy)  # fmt: skip
        if len(values) != count:
            raise Misfit("wrong-length", f"it returned {counted(len(values), 'reward')} for "
                         f"{counted(count, 'completion')}", "return one for each, in their order: None where it "
                         "abstains, and a low score where nothing can be read; leave none out")  # fmt: skip
        return values

    def _openrlhf(self, samples: Sequence[Sample]) -> list[Any]:
        prompts = [joined(sample.prompt) if sample.prompt else "" for sample in samples]
        given: dict[str, Any] = {
            "queries": [prompt + sample.completion for prompt, sample in zip(prompts, samples, strict=True)],
            "prompts": prompts, "labels": [sample.answer for sample in samples],
        }  # fmt: skip
        self._complete(given, samples)
        out = self._call(**{name: value for name, value in given.items() if self._any or name in self._names})
        return self._all(out["rewards"] if isinstance(out, Mapping) and "rewards" in out else out, len(samples))

    def _verl(self, sample: Sample) -> Any:
        row = sample.columns
        given = {
            "data_source": row.get("data_source", ""), "solution_str": sample.completion,
            "ground_truth": sample.answer, "extra_info": row.get("extra_info"),
        }  # fmt: skip
        self._complete(given, [sample])
        out = self._call(**(given if self._any else {name: given[name] for name in self._names if name in given}))
        if isinstance(out, Mapping) and "score" not in out:
            have = ", ".join(map(str, out)) or "nothing"
            raise Misfit("no-list", f"it returned a mapping without score (it has {have})",
                         "return a number, or a mapping with the number under score")  # fmt: skip
        return out["score"] if isinstance(out, Mapping) else out

    def _single(self, sample: Sample) -> Any:
        prompt = joined(sample.prompt) if sample.prompt else ""
        if len(self._names) <= 1:
            return self._call(sample.completion)
        known = {**dict.fromkeys(("prompt", "question"), prompt), **dict.fromkeys(_ANSWER_NAMES, sample.answer),
                 **dict.fromkeys(("completion", "response"), sample.completion)}  # fmt: skip
        if all(name in known for name in self._needed) and not self._positional:
            return self._call(**{name: known[name] for name in self._names if name in known})
        return self._call(*(prompt, sample.completion, sample.answer)[: min(len(self._names), 3)])

    def _call(self, *arguments: Any, **named: Any) -> Any:
        out = self._function(*arguments, **named)
        out = asyncio.run(_awaited(out)) if inspect.isawaitable(out) else out
        self.attached = self.attached or needs_gradient(out)
        return out


def columns_of(samples: Sequence[Sample]) -> list[str]:
    """The columns of the data, as a reward function can name them."""
    return sorted({str(name) for sample in samples for name in sample.columns})


def _kind(out: Any) -> str:
    if out is None:
        return "None"
    return "a mapping" if isinstance(out, Mapping) else f"one {type(out).__name__}"


async def _awaited(one: Any) -> Any:
    return await one


def _prompt(sample: Sample) -> Any:
    if sample.prompt and sample.prompt[0][0]:
        return [{"role": role, "content": text} for role, text in sample.prompt]
    return joined(sample.prompt) if sample.prompt else ""


def load_object(text: str) -> Any:
    """Import `package.module:name` or `file.py:name`. Raises `SentinelError`."""
    module_name, _, attribute = text.rpartition(":")
    if not module_name or not attribute:
        raise SentinelError(f"{text} is neither MODULE:FUNCTION nor the directory of a reward model")
    path = Path(module_name)
    tell("doing", what="load", place=text)
    try:
        with on_stderr():
            module = _from_file(path) if path.suffix == ".py" else _from_path(module_name)
            found = module
            for part in attribute.split("."):
                found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise SentinelError(
            f"cannot load {text}: {type(error).__name__}: {error}; correct the name or the module"
        ) from error
    tell("done")
    return found


def _from_path(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return import_module(name)


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


__all__ = ["FunctionScorer", "Misfit", "Sample", "Scorer", "columns_of", "load_object"]
