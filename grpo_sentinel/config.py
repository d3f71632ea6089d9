"""Settings of the sidecar and the launcher: one typed tree, read from YAML, refused with line and remedy.

The agent never imports this module: its few settings reach the trainer as environment variables or arguments
(see `agent.settings`), so that the trainer needs neither PyYAML nor pydantic.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from grpo_sentinel.errors import ConfigError
from grpo_sentinel.settings_file import line_of, read_tree
from grpo_sentinel.settings_section import Section, in_a_place_that_exists
from grpo_sentinel.settings_sinks import (
    AlertmanagerConfig,
    HistoryConfig,
    JsonlConfig,
    MlflowConfig,
    NotifyConfig,
    OtlpConfig,
    PrometheusConfig,
    QueueConfig,
    SinksConfig,
    TensorBoardConfig,
    WandbConfig,
    WebhookConfig,
)

ActionName = Literal[
    "note", "alert", "capture", "stacks", "memory-snapshot", "anomaly-trace", "checkpoint", "checkpoint-and-halt",
    "halt-now",
]  # fmt: skip


class AgentConfig(Section):
    """What the launcher passes on to the agent in every rank."""

    enabled: bool = Field(True, description="attach the agent at all")
    gate: Literal["skip", "halt", "off"] = Field(
        "skip", description="what happens to an update whose gradient is not finite on any rank"
    )
    skip_above_norm: float | None = Field(None, gt=0, description="also stop updates whose pre-clip norm exceeds this")
    local_gradients: Literal["off", "on_anomaly", "always"] = Field(
        "on_anomaly",
        description="watch each rank's own gradient before the all-reduce, to name the culprit; "
        "`on_anomaly`: for 20 steps after a norm that is not finite or far above its running level",
    )
    vote_every: int = Field(
        1, ge=1, description="step votes per comparison of parameter digests; gate and halt are agreed at every step"
    )
    vitals_every: int = Field(
        16,
        ge=1,
        description="step votes per gathering of a few figures of every rank, to find the odd one out",
    )
    live_tensors_every: int = Field(
        0,
        ge=0,
        description="steps per count of live tensors by dtype and shape, to find a leak; walks all Python objects",
    )
    activations_every: int = Field(
        0,
        ge=0,
        description="steps per look at the activations of up to 8 blocks, activation functions and routers of a model "
        "that is not compiled: range, dead units, load of experts",
    )
    overhead_share: float = Field(0.005, gt=0, le=1, description="share of step time above which sampling is thinned")
    overhead_floor_seconds: float = Field(0.002, ge=0, description="self time per step that is always allowed")
    segment_slots: int = Field(256, ge=64, le=65536, description="step records a ring holds")
    event_slots: int = Field(256, ge=16, le=65536, description="events a ring holds")
    capture: Literal["off", "on_request", "on_anomaly"] = Field(
        "on_anomaly", description="write tensors and batch of a faulty step, for the incident's bundle"
    )
    capture_bytes: int = Field(32_000_000, ge=100_000, description="size of one captured file")
    capture_files: int = Field(8, ge=1, le=1000, description="captured files of one rank and process")


class NvmlConfig(Section):
    """NVIDIA GPUs, read through NVML."""

    enabled: bool = Field(True, description="read GPUs through NVML where a driver is present")
    interval_seconds: float = Field(5.0, gt=0, description="time between readings")
    timeout_seconds: float = Field(10.0, gt=0, description="a reading that takes longer is given up and reported")


class HostConfig(Section):
    """Memory, CPU, disk and cgroup limits of the node."""

    enabled: bool = Field(True, description="read host memory, CPU, disk and cgroup limits")
    interval_seconds: float = Field(5.0, gt=0, description="time between readings")
    disk_paths: tuple[str, ...] = Field((), description="file systems to watch besides the state directory")


class CollectorsConfig(Section):
    """What is read besides the trainer's rings."""

    nvml: NvmlConfig = NvmlConfig()
    host: HostConfig = HostConfig()


class RuleOverride(Section):
    """Change of one built-in rule: only what is given changes."""

    enabled: bool | None = Field(None, description="switch the rule on or off")
    severity: Literal["note", "warning", "critical"] | None = Field(None, description="how much a finding matters")
    action: ActionName | None = Field(None, description="what a finding asks for")
    parameters: dict[str, Any] = Field(default_factory=dict, description="parameters of its detector")


class RulesConfig(Section):
    """Which rules judge the run, and how."""

    profile: str = Field("auto", description="thresholds for one algorithm and setting; auto reads the trainer")
    files: tuple[str, ...] = Field((), description="further rule files in the format of the built-in ones")
    disabled: tuple[str, ...] = Field((), description="names of rules to switch off")
    override: dict[str, RuleOverride] = Field(default_factory=dict, description="changes by rule name")
    late_rank_seconds: float = Field(2.0, gt=0, description="how long a step waits for a rank before it is judged")


class HaltingConfig(Section):
    """When the trainer is asked to checkpoint or halt, and what follows when it does not answer."""

    enabled: bool = Field(True, description="let rules ask the trainer to checkpoint or halt")
    dry_run: bool = Field(False, description="say what would have been asked, and ask nothing")
    acknowledge_seconds: float = Field(120.0, gt=0, description="a request not voted by then escalates to stacks")
    checkpoint_seconds: float = Field(600.0, gt=0, description="a checkpoint not finished by then escalates")
    terminate_seconds: float = Field(60.0, gt=0, description="after the stacks: SIGTERM to the launcher")
    kill_after_seconds: float | None = Field(None, gt=0, description="after SIGTERM: SIGKILL; off unless set")
    cooldown_seconds: float = Field(300.0, ge=0, description="time between two requests by rules")
    max_requests: int = Field(3, ge=1, description="requests by rules in one run")
    evidence_cooldown_seconds: float = Field(60.0, ge=0, description="time between two requests of rules for evidence")
    max_evidence: int = Field(5, ge=0, description="captures, traces and the like that rules may ask for in one run")
    nonfinite_updates: int = Field(3, ge=1, description="skipped non-finite updates that halt the run ...")
    nonfinite_window_steps: int = Field(20, ge=1, description="... when they fall within so many steps")
    pin_checkpoints: bool = Field(True, description="keep the newest checkpoint from before the onset of an anomaly")
    max_pins: int = Field(3, ge=1, description="kept checkpoints of a run and its restarts; each costs a checkpoint")
    checkpoint_dir: str | None = Field(None, description="where the trainer saves; found from its config when unset")
    on_alerts: dict[str, Literal["checkpoint", "checkpoint-and-halt"]] = Field(
        default_factory=dict,
        description="alerts that Alertmanager may post to /api/alertmanager, and what each asks of the run it names",
    )
    on_alert_labels: dict[str, str] = Field(
        default_factory=dict, description="labels that such an alert must carry besides the run_id of a watched run"
    )

    @model_validator(mode="after")
    def _enough_steps_for_the_count(self) -> HaltingConfig:
        if self.nonfinite_updates > self.nonfinite_window_steps:
            raise ValueError(
                f"nonfinite_updates {self.nonfinite_updates} never fall within nonfinite_window_steps "
                f"{self.nonfinite_window_steps}: lower the first or raise the second"
            )
        return self


class IncidentsConfig(Section):
    """Bundles of evidence that the sidecar writes when something goes wrong."""

    enabled: bool = Field(True, description="write a bundle for every incident, under the state directory")
    severity: Literal["warning", "critical"] = Field("critical", description="a finding this grave begins an incident")
    keep_steps: int = Field(
        200, ge=1, le=10_000, description="steps kept before the onset, after it, and up to the end"
    )
    samples: Literal["off", "hashed", "full"] = Field(
        "hashed", description="texts and token ids of samples: left out, as SHA-256 and length, or in full"
    )
    max_bytes: int = Field(1_000_000_000, ge=1_000_000, description="size above which the oldest closed bundles go")
    max_incidents: int = Field(20, ge=1, description="bundles of one run; what comes after joins the newest one")
    stacks: bool = Field(True, description="take the stacks of all ranks of the node when a critical incident begins")
    archive: bool = Field(False, description="pack a bundle as tar.gz when it is closed")
    log_files: tuple[str, ...] = Field((), description="logs of the trainer of which the tail is kept; may hold *")


class HttpConfig(Section):
    """The sidecar's own HTTP server."""

    enabled: bool = Field(True, description="serve page, API, /metrics and the health endpoints")
    host: str = Field("127.0.0.1", description="address to listen on; loopback unless told otherwise")
    port: int = Field(9477, ge=0, le=65535, description="0 takes a free one; when taken, another is used and said")
    fixed_port: bool = Field(False, description="`run` ends when the port is taken: for a probe that knows only one")
    read_token: str | None = Field(
        None, description="token that page and API need, not /metrics; default: read-token in the state directory"
    )
    read_token_file: str | None = Field(None, description="file that holds it; goes before the variable")
    read_token_env: str | None = Field("GRPO_SENTINEL_READ_TOKEN", description="environment variable that holds it")
    open_reading: bool = Field(False, description="without one of these three, who reaches the address may read all")
    act_token_file: str | None = Field(
        None, description="file with the token that acting needs, as Alertmanager does; else a new one each start"
    )
    allowed_hosts: tuple[str, ...] = Field(
        (), description="names it may be asked under besides localhost, `host` and IP addresses, as a service name"
    )


class LaunchConfig(Section):
    """The `grpo-sentinel launch` command."""

    halted_exit_code: int = Field(83, ge=0, le=255, description="exit code of `launch` when a rule halted the run")
    notice_exit_code: int | None = Field(
        None, ge=0, le=255, description="exit code when a notice halted the run, to be started again; else the same"
    )
    linger_seconds: float = Field(5.0, ge=0, description="how long the sidecar stays after the trainer has ended")
    on_notice: dict[Literal["TERM", "USR1", "HUP"], Literal["checkpoint", "checkpoint-and-halt"]] = Field(
        default_factory=dict,
        description="what a scheduler's signal asks for, as {USR1: checkpoint-and-halt}; a second one is passed on",
    )
    notice_seconds: float | None = Field(
        None, gt=0, description="the command is given the signal itself when it runs on for so long after a notice"
    )


class Config(Section):
    """The whole tree; `Config()` is what ships."""

    ring_dir: str | None = Field(None, description="where rings live; default $GRPO_SENTINEL_DIR, /dev/shm, ...")
    state_dir: str | None = Field(None, description="history and incidents; default $XDG_STATE_HOME/grpo-sentinel")
    poll_interval_seconds: float = Field(0.03, ge=0.005, le=5, description="time between two looks at the rings")
    rank_dead_seconds: float = Field(1.0, gt=0, description="a rank without its lock for so long is dead")
    agent: AgentConfig = AgentConfig()
    collectors: CollectorsConfig = CollectorsConfig()
    rules: RulesConfig = RulesConfig()
    halting: HaltingConfig = HaltingConfig()
    incidents: IncidentsConfig = IncidentsConfig()
    sinks: SinksConfig = SinksConfig()
    http: HttpConfig = HttpConfig()
    launch: LaunchConfig = LaunchConfig()

    _places = field_validator("ring_dir", "state_dir")(in_a_place_that_exists)


def load_config(path: str | Path | None) -> Config:
    """Read a YAML file into a `Config`; None gives the defaults.

    Raises `ConfigError` naming for every mistake the key, the value, the file and line, and what is expected.
    """
    if path is None:
        return Config()
    source = Path(path)
    data, node = read_tree(source)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(*(explain(one, source, node) for one in error.errors())) from error


def mistakes_in(data: dict[Any, Any]) -> list[ErrorDetails]:
    """What is wrong with settings that `read_tree` gave; empty when `Config.model_validate` takes them."""
    try:
        Config.model_validate(data)
    except ValidationError as error:
        return error.errors()
    return []


def explain(error: ErrorDetails, source: Path, node: Any) -> str:
    """Say one mistake: file, line, key, what is expected or the remedy, and the value."""
    key = ".".join(str(part) for part in error["loc"])
    line = line_of(node, error["loc"])
    place = f"{source}" + (f" line {line}" if line else "")
    near = difflib.get_close_matches(str(error["loc"][-1]), _siblings(error["loc"]), n=1)
    value = repr(error["input"])
    if any(word in name.lower() for word in _SECRET for name in (key, *near)):
        value = "a value that may be secret"
    elif isinstance(error["input"], (dict, list)) and error["input"]:
        value = "a mapping" if isinstance(error["input"], dict) else "a list"  # of which any part may be secret
    value = value if len(value) <= 80 else f"{value[:77]}..."
    if error["type"] == "extra_forbidden":
        remedy = f"did you mean {near[0]}?" if near else "remove it or see config.example.yaml for the known ones"
        return f"{place}: unknown setting {key}, got {value}; {remedy}"
    said = error["msg"].removeprefix("Value error, ")
    got = "" if error["type"] == "value_error" and isinstance(error["input"], dict) else f", got {value}"
    return f"{place}: {key}: {said[0].lower()}{said[1:]}{got}"


_SECRET = ("token", "url", "password", "secret")


def _siblings(location: tuple[int | str, ...]) -> list[str]:
    """Name the settings that the section of a key path knows; [] where it cannot be told."""
    section: Any = Config
    for part in location[:-1]:
        field = section.model_fields.get(str(part))
        section = field.annotation if field is not None else None
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return []
    return list(section.model_fields)


__all__ = [
    "AgentConfig", "AlertmanagerConfig", "CollectorsConfig", "Config", "HaltingConfig", "HistoryConfig", "HostConfig",
    "HttpConfig", "IncidentsConfig", "JsonlConfig", "LaunchConfig", "MlflowConfig", "NotifyConfig", "NvmlConfig",
    "OtlpConfig", "PrometheusConfig", "QueueConfig", "RuleOverride", "RulesConfig", "SinksConfig", "TensorBoardConfig",
    "WandbConfig", "WebhookConfig", "explain", "load_config", "mistakes_in",
]  # fmt: skip
