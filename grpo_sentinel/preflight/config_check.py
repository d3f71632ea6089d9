"""`check config`: our own settings, or a trainer's (TRL, verl, OpenRLHF, DeepSpeed): a file, or what starts it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import yaml

from grpo_sentinel.config import Config, load_config
from grpo_sentinel.errors import ConfigError, SentinelError
from grpo_sentinel.preflight.config_check_commands import shell_settings
from grpo_sentinel.preflight.config_check_names import Settings, flatten, recognise_trainer, settings_in
from grpo_sentinel.preflight.config_check_python import python_settings
from grpo_sentinel.preflight.config_check_trainer import check_trainer
from grpo_sentinel.preflight.config_check_typos import slips
from grpo_sentinel.preflight.look import Level
from grpo_sentinel.preflight.report import CheckReport, Fault, gravest_first
from grpo_sentinel.rules import load_rules
from grpo_sentinel.settings_file import refuse_multiplied


def check_config(path: Path, *, world_size: int | None = None) -> CheckReport:
    """Check one file; `world_size` is the number of ranks, for the geometry of batches. Raises `SentinelError`."""
    began = time.monotonic()
    body, complete = _read(path)
    if set(body) & set(Config.model_fields):
        faults, notes, looked, facts, not_seen = _own(path)
    else:
        flat, section = settings_in(flatten(body))
        settings = recognise_trainer(flat, str(path), complete=complete)
        if world_size is not None:
            settings.values |= {"world_size": world_size}
            settings.values.pop("gpus", None)  # of the file
        faults, notes = check_trainer(settings)
        slipped = slips(settings, flat)
        named = {fault.where for fault in slipped}
        faults = [*slipped, *(fault for fault in faults if fault.where not in named)]
        where = f" in section {section}" if section else ""
        looked = [f"{settings.trainer} settings{where}: {', '.join(sorted(settings.values))}"]
        facts = {"trainer": settings.trainer, "settings": dict(settings.values)}
        not_seen = _not_seen(settings)
    return CheckReport(
        kind="config", subject=str(path), looked_at=tuple(looked), not_seen=tuple(not_seen),
        faults=gravest_first(faults), notes=tuple(notes), facts=facts, seconds=time.monotonic() - began,
    )  # fmt: skip


_MOST_BYTES = 16 << 20
_SHELL = (".sh", ".bash", ".slurm", ".sbatch")


def _read(path: Path) -> tuple[dict[str, Any], bool]:
    """Read settings, and whether they are all that the trainer is told. Raises `SentinelError`."""
    if path.suffix not in (*_SHELL, ".py"):
        return read_mapping(path), False
    text = _text(path)
    try:
        body = python_settings(text) if path.suffix == ".py" else shell_settings(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SentinelError(f"{path}: not valid Python: {' '.join(str(error).split())}; correct it") from error
    if not body:
        wanted = "call of GRPOConfig with settings" if path.suffix == ".py" else "--option or override a.b=value"
        raise SentinelError(f"{path}: no settings are written in it, not one {wanted}; give the trainer's settings")
    return body, True


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise SentinelError(f"{path} has more than {_MOST_BYTES >> 20} MiB; give a file of settings")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SentinelError(f"cannot read {path}: {error.strerror}; give a readable file of settings") from error
    except UnicodeDecodeError as error:
        raise SentinelError(f"{path} is not UTF-8: {error.reason} at byte {error.start}; give a text file") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Read JSON or YAML (JSON is YAML). Raises `SentinelError`."""
    text = _text(path)
    try:
        if path.suffix == ".json":
            body = json.loads(text)
        else:
            refuse_multiplied(yaml.compose(text, Loader=yaml.SafeLoader), path)
            body = yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise SentinelError(f"{path}: not valid JSON or YAML: {' '.join(str(error).split())}; correct it") from error
    if not isinstance(body, dict) or not body:
        raise SentinelError(f"{path}: expected a mapping of settings, got {type(body).__name__}")
    return {str(key): value for key, value in body.items()}


def _own(path: Path) -> tuple[list[Fault], list[str], list[str], dict[str, object], list[str]]:
    notes: list[str] = []
    try:
        config = load_config(path)
        rules = load_rules(config.rules)
    except ConfigError as error:
        faults = [
            Fault(level=Level.BROKEN, code="own-config", where=str(path), message=mistake, remedy="correct the file")
            for mistake in error.mistakes
        ]
        return faults, notes, ["grpo-sentinel settings"], {}, []
    if not config.halting.enabled or config.halting.dry_run:
        notes.append("halting is off or only said (halting.enabled, halting.dry_run): no rule stops the run")
    if not config.agent.enabled:
        notes.append("the agent is off (agent.enabled): nothing is seen inside the trainer")
    if config.agent.gate == "off":
        notes.append("the gate is off (agent.gate): a non-finite gradient reaches the weights")
    facts: dict[str, object] = {"rules": len(rules)}
    return [], notes, [f"grpo-sentinel settings and {len(rules)} rules"], facts, []


def _not_seen(settings: Settings) -> list[str]:
    out = []
    if "world_size" not in settings.values:
        out.append("batch geometry over all ranks (--world-size N): one rank is assumed")
    for name, what in (
        ("learning_rate", "learning rate"),
        ("group_size", "group size"),
        ("save_strategy", "when it saves"),
    ):
        if name not in settings.values and not (name == "save_strategy" and "save_steps" in settings.values):
            out.append(f"{what}: the file does not say it, the trainer's default holds")
    return out


__all__ = ["check_config", "read_mapping"]
