"""Zero-code attachment: when `transformers.trainer` is imported, `Trainer.train` learns to attach first.

Called by `grpo_sentinel.pth` in every interpreter of a job that has GRPO_SENTINEL=1 in its environment. Imports nothing
but the standard library; the agent, and with it torch, is loaded when a GRPO trainer starts to train.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_TARGET = "transformers.trainer"
_NEEDED = "_generate_and_score_completions"  # what makes a Trainer a GRPO-like one


def install() -> None:
    """Wait for `transformers.trainer`; a second call changes nothing (a `.pth` line may run twice in one process)."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    module = sys.modules.get(_TARGET)
    if module is not None:
        teach(module)
    else:
        sys.meta_path.insert(0, _Finder())


def teach(module: ModuleType) -> None:
    """Let `module.Trainer.train` attach an agent to a GRPO-like trainer before it trains; once."""
    trainer_class: Any = module.Trainer
    original = trainer_class.train
    if hasattr(original, "_grpo_sentinel"):
        return

    @functools.wraps(original)
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        agent = _attach(self)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            if agent is not None:
                agent.exception(error, "train")
            raise

    train._grpo_sentinel = True  # type: ignore[attr-defined]
    trainer_class.train = train


def _attach(trainer: Any) -> Any:
    """Attach unless the script did it itself; None when there is nothing to tell."""
    if not hasattr(trainer, _NEEDED):
        return None
    handler = getattr(trainer, "callback_handler", None)
    if any(type(callback).__name__ == "SentinelCallback" for callback in getattr(handler, "callbacks", ())):
        return None
    try:
        from grpo_sentinel.agent.entry import attach

        agent = attach(trainer)
    except Exception as error:  # noqa: BLE001 - a broken installation must not stop the training it was to watch
        sys.stderr.write(f"grpo-sentinel: not attached, training goes on unwatched: {type(error).__name__}: {error}\n")
        return None
    return agent if agent.active else None


class _Finder(MetaPathFinder):
    """Finds the one module it waits for through the other finders, and wraps its loader."""

    def __init__(self) -> None:
        self._busy = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _TARGET or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, teach)
        return spec


class _Loader(Loader):
    """Loads as the real loader does and calls `then` on the module."""

    def __init__(self, real: Loader, then: Callable[[ModuleType], None]) -> None:
        self._real = real
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its real loader, or pickling, inspect and importlib.resources would break.
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        try:
            self._then(module)
        except Exception as error:  # noqa: BLE001 - an unknown transformers must import as if we were not there
            sys.stderr.write(f"grpo-sentinel: cannot attach to this transformers ({type(error).__name__}: {error})\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
