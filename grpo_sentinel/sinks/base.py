"""What a sink is, and the table of those that ship; other packages add theirs by entry point.

[project.entry-points."grpo_sentinel.sinks"]
my_store = "my_package.sink:make"            # make(context: SinkContext) -> Sink
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from grpo_sentinel.clock import Clock
from grpo_sentinel.config import SinksConfig
from grpo_sentinel.errors import ConfigError
from grpo_sentinel.views import SinkBatch

ENTRY_POINTS = "grpo_sentinel.sinks"


class Sink(Protocol):
    """Where batches go. One thread makes, feeds and closes a sink; it may raise and may be slow.

    A sink may also have `tick()`, called when no batch came for a while, `health() -> Mapping[str, float]`, and
    `problem() -> str`: one sentence while it takes batches and cannot hand them on, "" else.
    """

    def write(self, batch: SinkBatch) -> None:
        """Take one batch; raise when it could not be taken and a retry may help."""
        ...

    def close(self) -> None:
        """Write out what is left and let go of everything."""
        ...


Page = Callable[[], str]
"""Gives the address of the sidecar's page, "" while there is none: sinks are made before it is served."""


def no_page() -> str:
    """There is no page."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a factory may need to make its sink."""

    run_id: str
    node: str
    state_dir: Path
    clock: Clock
    config: SinksConfig
    settings: Mapping[str, Any] = field(default_factory=dict)  # of a sink from elsewhere
    page: Page = no_page


Factory = Callable[[SinkContext], Sink]

BUILT_IN: dict[str, str] = {
    "history": "grpo_sentinel.sinks.built_in:make_history",
    "prometheus": "grpo_sentinel.sinks.built_in:make_prometheus",
    "jsonl": "grpo_sentinel.sinks.jsonl:make",
    "tensorboard": "grpo_sentinel.sinks.tensorboard:make",
    "alertmanager": "grpo_sentinel.sinks.alertmanager:make",
    "webhook": "grpo_sentinel.sinks.webhook:make",
    "notify": "grpo_sentinel.sinks.notify:make",
    "wandb": "grpo_sentinel.sinks.wandb_sink:make",
    "mlflow": "grpo_sentinel.sinks.mlflow_sink:make",
    "otlp": "grpo_sentinel.sinks.otlp_sink:make",
}
"""Sinks that ship, loaded when first asked for."""


def enabled(config: SinksConfig) -> list[str]:
    """Name the sinks of the table that are switched on."""
    return [name for name in BUILT_IN if getattr(config, name).enabled]


def load_factory(name: str) -> Factory:
    """Find the factory of a sink by name: first the table, then entry points.

    Raises `ConfigError` when there is none of that name or it cannot be imported.
    """
    try:
        if name in BUILT_IN:
            module, _, attribute = BUILT_IN[name].partition(":")
            factory = getattr(importlib.import_module(module), attribute)
        else:
            found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
            if name not in found:
                known = ", ".join(sorted({*BUILT_IN, *found}))
                raise ConfigError(f"there is no sink named {name!r}; known are {known}")
            factory = found[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the sink {name!r} cannot be loaded: {error}; install what it needs or remove it") from error
    if not callable(factory):
        raise ConfigError(f"the sink {name!r} names {factory!r}, which cannot be called; give a factory")
    return factory  # type: ignore[no-any-return]
