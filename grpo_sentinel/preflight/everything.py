"""`check all`: every check that the given paths allow, one after another; what was not given is said, not guessed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.apart import gradients_apart, policy_apart, reward_apart
from grpo_sentinel.preflight.checkpoint import check_checkpoint
from grpo_sentinel.preflight.config_check import check_config, read_mapping
from grpo_sentinel.preflight.data import DataOptions, check_data
from grpo_sentinel.preflight.data_checks import Limits
from grpo_sentinel.preflight.environment import EnvironmentOptions, check_environment
from grpo_sentinel.preflight.gradients import GradientOptions
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.policy import PolicyOptions
from grpo_sentinel.preflight.report import SCHEMA_VERSION, CheckReport, Fault
from grpo_sentinel.preflight.reward import RewardOptions
from grpo_sentinel.wording import counted

SCHEMA = "grpo-sentinel/all-check"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllOptions:
    """Everything that a run consists of; "" and () = not given. Also the keys of a file for `--config`."""

    data: tuple[str, ...] = ()
    eval: tuple[str, ...] = ()
    policy: str = ""
    reference: str = ""
    reward_model: str = ""
    reward: str = ""
    template: str = "{answer}"
    checkpoint: str = ""
    checkpoint_dir: str = ""
    trainer_config: str = ""
    sentinel_config: str = ""
    world_size: int = 0
    reward_low: float | None = None
    reward_high: float | None = None
    device: str = ""
    dtype: str = "float32"
    timeout: float = 40.0  # seconds for all of it: those that run a model or a reward share what is left


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReport:
    """The reports by check, in the order in which they ran."""

    reports: Mapping[str, CheckReport]
    not_run: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 when nothing was found in any, 2 when something could not be checked and that is all, else 1."""
        levels = {fault.level for report in self.reports.values() for fault in report.faults}
        return 0 if not levels else 2 if levels == {Level.CANNOT_TELL} else 1

    def to_json(self) -> dict[str, object]:
        """Give the reports in their versioned schema."""
        return {
            "schema": SCHEMA, "version": SCHEMA_VERSION, "clean": self.exit_code == 0,
            "checks": {name: one.to_json() for name, one in self.reports.items()}, "not_run": list(self.not_run),
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


def read_options(path: Path, given: AllOptions) -> AllOptions:
    """Read options from YAML or JSON; what `given` sets wins. Raises `SentinelError` for a key that is none."""
    known = {one.name: one for one in fields(AllOptions)}
    out: dict[str, Any] = {}
    for key, value in read_mapping(path).items():
        name = key.replace("-", "_")
        if name not in known:
            raise SentinelError(f"{path}: {key} is no key of check all; it knows {', '.join(known)}")
        kind = known[name].type
        if kind == "tuple[str, ...]":
            value = tuple(str(one) for one in (value if isinstance(value, list) else [value]))
        elif kind == "str":
            value = str(value)
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise SentinelError(f"{path}: {key}: expected a number, got {value!r}")
        out[name] = value
    default = AllOptions()
    told = {name: getattr(given, name) for name in known if getattr(given, name) != getattr(default, name)}
    options = replace(default, **{**out, **told})
    low, high = options.reward_low, options.reward_high
    if low is not None and high is not None and not low < high:
        raise SentinelError(f"{path}: reward_low {low:g} is not below reward_high {high:g}")
    if options.timeout <= 0:
        raise SentinelError(f"{path}: timeout: expected seconds above 0, got {options.timeout:g}")
    return options


def check_everything(options: AllOptions, begun: Callable[[str], None] | None = None) -> AllReport:
    """Run all that applies; `begun` is told the name of each. Never raises for one check: it says why it could not."""
    began = time.monotonic()
    reports: dict[str, CheckReport] = {}
    not_run: list[str] = []
    plan = list(_plan(options))
    left = sum(name in _TIMED for name, run, _ in plan if run is not None)
    for name, run, missing in plan:
        if run is None:
            not_run.append(f"{name}: needs {missing}")
            continue
        if begun is not None:
            begun(name)
        share = max(_LEAST_SECONDS, (options.timeout - (time.monotonic() - began)) / max(1, left))
        left -= name in _TIMED
        try:
            reports[name] = run(share)
        except SentinelError as error:
            fault = Fault(level=Level.CANNOT_TELL, code="not-checked", where=name, message=str(error),
                          remedy=f"see grpo-sentinel check {name.split()[0]} --help")  # fmt: skip
            reports[name] = CheckReport(kind=name, subject=name, looked_at=(), faults=(fault,))
    return AllReport(reports=reports, not_run=tuple(not_run), seconds=time.monotonic() - began)


_Step = tuple[str, Callable[[float], CheckReport] | None, str]  # name, run within seconds, what it needs
_TIMED = ("reward", "reward (model)", "policy", "gradients")
_LEAST_SECONDS = 5.0


def _plan(one: AllOptions) -> Iterator[_Step]:
    """Cheap ones first; the path that is missing where a check cannot run."""
    models = {"policy": one.policy, "reference": one.reference, "reward": one.reward_model}
    environment = EnvironmentOptions(
        models={role: Path(path) for role, path in models.items() if path and Path(path).is_dir()},
        checkpoint_dir=Path(one.checkpoint_dir) if one.checkpoint_dir else None,
    )
    yield "environment", lambda _: check_environment(environment), ""
    trainer, sentinel, size = one.trainer_config, one.sentinel_config, one.world_size or None
    yield (
        "config", (lambda _: check_config(Path(trainer), world_size=size)) if trainer else None,
        "--trainer-config FILE",
    )  # fmt: skip
    yield (
        "config (sentinel)", (lambda _: check_config(Path(sentinel))) if sentinel else None, "--sentinel-config FILE",
    )  # fmt: skip
    yield "data", (lambda _: check_data(one.data, _data(one))) if one.data else None, "--data FILE"
    yield "checkpoint", (lambda _: _checkpoint(Path(one.checkpoint))) if one.checkpoint else None, "--checkpoint DIR"
    for name, target, option in (
        ("reward", one.reward, "--reward MODULE:FUNCTION"), ("reward (model)", one.reward_model, "--reward-model DIR"),
    ):  # fmt: skip
        yield name, partial(_reward, one, target) if target and one.data else None, f"{option} and --data FILE"
    yield "policy", partial(_policy, one) if one.policy else None, "--policy DIR"
    yield "gradients", partial(_gradients, one) if one.checkpoint or one.policy else None, "--checkpoint DIR"


def _data(one: AllOptions) -> DataOptions:
    tokenizer = Path(one.policy) if one.policy and Path(one.policy).is_dir() else None
    limits = Limits(reward_low=one.reward_low, reward_high=one.reward_high)
    return DataOptions(limits=limits, evaluation=one.eval, tokenizer=tokenizer, jobs=0)


def _reward(one: AllOptions, target: str, seconds: float) -> CheckReport:
    options = RewardOptions(
        template=one.template, low=one.reward_low, high=one.reward_high, timeout_seconds=seconds
    )  # fmt: skip
    return reward_apart(target, one.data, options)


def _policy(one: AllOptions, seconds: float) -> CheckReport:
    options = PolicyOptions(
        reference=one.reference, reward_model=one.reward_model, reward=one.reward, data=one.data, dtype=one.dtype,
        device=one.device, timeout_seconds=seconds,
    )  # fmt: skip
    return policy_apart(one.policy, options)


def _gradients(one: AllOptions, seconds: float) -> CheckReport:
    options = GradientOptions(
        data=one.data, reward=one.reward or one.reward_model, dtype=one.dtype, device=one.device,
        timeout_seconds=seconds,
    )  # fmt: skip
    return gradients_apart(one.checkpoint or one.policy, options)


def _checkpoint(path: Path) -> CheckReport:
    """The answer of `check checkpoint` as a report like the others."""
    report = check_checkpoint(path)
    remedy = "grpo-sentinel resume-point names the checkpoint to use"
    return CheckReport(
        kind="checkpoint", subject=str(path), looked_at=(counted(len(report.files), "file"),), seconds=report.seconds,
        faults=tuple(
            Fault(level=one.level, code=one.code, where=one.where, subject=one.subject, message=one.message,
                  remedy=remedy)
            for one in report.problems
        ),
        facts={"resumable": report.resumable.value, "step": report.step, "finite": report.finite},
    )  # fmt: skip


__all__ = ["SCHEMA", "AllOptions", "AllReport", "check_everything", "read_options"]
