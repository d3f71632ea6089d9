"""The agent's few settings: arguments, or environment variables that the launcher sets; never YAML.

    GRPO_SENTINEL=1               switches the zero-code attachment on (0 forbids any attachment)
    GRPO_SENTINEL_SETTINGS        JSON object with any field of `Settings`
    GRPO_SENTINEL_STRICT=1        let the agent's own exceptions out (for tests)

GRPO_SENTINEL_DIR, GRPO_SENTINEL_RUN_ID and GRPO_SENTINEL_PARENT_RUN_ID say where the rings lie; `protocol` reads them.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_sentinel.errors import ConfigError

_CHOICES: dict[str, tuple[str, ...]] = {
    "gate": ("skip", "halt", "off"),
    "local_gradients": ("off", "on_anomaly", "always"),
    "capture": ("off", "on_request", "on_anomaly"),
    "samples": ("off", "hashed", "full"),
}
_AT_LEAST: dict[str, float] = {
    "vote_every": 1,
    "vitals_every": 1,
    "live_tensors_every": 0,
    "activations_every": 0,
    "segment_slots": 64,
    "event_slots": 16,
    "local_gradient_steps": 1,
    "capture_bytes": 100_000,
    "capture_files": 1,
}
_ABOVE_ZERO = ("overhead_share", "handshake_seconds", "vote_timeout_seconds", "skip_above_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the agent of one rank does. Up to `capture_files` it is `config.AgentConfig`, field for field."""

    enabled: bool = True
    gate: str = "skip"  # skip | halt | off: what happens to an update whose gradient is not finite on any rank
    skip_above_norm: float | None = None  # also stop updates whose pre-clip norm exceeds this
    local_gradients: str = "on_anomaly"  # off | on_anomaly | always: watch each rank's gradient before the all-reduce
    vote_every: int = 1  # parameter digests stand in every so many votes; gate and requests in every one
    vitals_every: int = 16  # votes per gathering of every rank's vitals
    live_tensors_every: int = 0  # steps per count of live tensors by shape; 0: never
    activations_every: int = 0  # steps per look at activations and routers; 0: never
    overhead_share: float = 0.005
    overhead_floor_seconds: float = 0.002
    segment_slots: int = 256
    event_slots: int = 256
    capture: str = "on_anomaly"  # off | on_request | on_anomaly: write tensors and batch of a faulty step
    capture_bytes: int = 32_000_000
    capture_files: int = 8
    handshake_seconds: float = 120.0  # how long ranks wait for each other's core at attach
    vote_timeout_seconds: float = 1800.0  # of the vote's own group; the job's default limit
    local_gradient_steps: int = 20  # steps that the hooks stay armed after the last non-finite norm or spike
    run_id: str = ""  # "": from the environment, see `protocol.derive_run_id`
    samples: str = "hashed"  # off | hashed | full: token ids of a captured batch; `launch` says `incidents.samples`
    spool: str = ""  # where captured files wait for the sidecar; "": $XDG_STATE_HOME/grpo-sentinel/spool
    group: str | None = None  # Unix group that may read the rings
    strict: bool = False

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"agent setting {name}: expected one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )
        for name, least in _AT_LEAST.items():
            if not _is_number(getattr(self, name)) or getattr(self, name) < least:
                raise ConfigError(f"agent setting {name}: expected a number >= {least:g}, got {getattr(self, name)!r}")
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and (not _is_number(value) or not value > 0):
                raise ConfigError(f"agent setting {name}: expected a number > 0, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def settings_from_environment(environ: Mapping[str, str] = os.environ, **changes: Any) -> Settings:
    """Read `Settings` from the environment; `changes` that are not None win.

    Raises `ConfigError` naming the setting, its value and what is expected.
    """
    fields: dict[str, Any] = _read_json(environ.get("GRPO_SENTINEL_SETTINGS", ""))
    if environ.get("GRPO_SENTINEL") == "0":
        fields["enabled"] = False
    if environ.get("GRPO_SENTINEL_STRICT") == "1":
        fields["strict"] = True
    fields.update({name: value for name, value in changes.items() if value is not None})
    return Settings(**fields)


def _read_json(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f'GRPO_SENTINEL_SETTINGS is not JSON ({error}); give an object such as {{"gate": "skip"}}'
        ) from error
    if not isinstance(fields, dict):
        raise ConfigError(f"GRPO_SENTINEL_SETTINGS: expected a JSON object, got {type(fields).__name__}")
    known = {field.name for field in dataclasses.fields(Settings)}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise ConfigError(
            f"GRPO_SENTINEL_SETTINGS: unknown setting {unknown[0]!r}; known are {', '.join(sorted(known))}"
        )
    return fields
