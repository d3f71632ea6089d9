"""`check environment` (S41): versions, driver, limits, disk, clock, and whether the models' tokenizers agree."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpo_sentinel.preflight import environment_host as host
from grpo_sentinel.preflight import environment_versions as versions
from grpo_sentinel.preflight.environment_tokenizers import own_faults, pair_faults, read_facts, version_faults
from grpo_sentinel.preflight.report import CheckReport, Fault, gravest_first


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentOptions:
    """What the caller names: models by role (policy, reference, reward), and where checkpoints will go."""

    models: Mapping[str, Path] = field(default_factory=dict)
    checkpoint_dir: Path | None = None
    checkpoints: int = 3


def check_environment(options: EnvironmentOptions | None = None) -> CheckReport:
    """Check this node and Python environment; imports no training library. Raises `SentinelError`."""
    options = options or EnvironmentOptions()
    began = time.monotonic()
    have = versions.installed()
    faults, not_seen = versions.version_faults(have)
    cuda, driver = versions.torch_cuda(), versions.driver_version()
    faults += versions.driver_faults(cuda, driver)
    faults += [*host.limit_faults(), *host.clock_faults(options.checkpoint_dir)]
    facts: dict[str, object] = {
        "versions": have, "torch_cuda": cuda, "driver": ".".join(map(str, driver)) if driver else None,
        "ulimits": host.ulimits(),
    }  # fmt: skip
    looked = [f"{len(have)} training packages against each other's requirements", "driver, limits, clock"]
    if driver is None:
        not_seen.append("driver against CUDA: no NVIDIA driver is loaded here")
    _disk(options, faults, facts, looked, not_seen)
    _tokenizers(options, faults, looked, not_seen)
    return CheckReport(
        kind="environment", subject="this node", looked_at=tuple(looked), not_seen=tuple(not_seen),
        faults=gravest_first(faults), facts=facts, seconds=time.monotonic() - began,
    )  # fmt: skip


def _disk(
    options: EnvironmentOptions, faults: list[Fault], facts: dict[str, object], looked: list[str], not_seen: list[str]
) -> None:
    directory = options.checkpoint_dir
    if directory is not None and (wrong := host.place_faults(directory)):
        faults += wrong
        return
    one = host.checkpoint_bytes(options.models.get("policy"), directory)
    if directory is None or one is None:
        not_seen.append("disk for checkpoints (--checkpoint-dir DIR, with --policy DIR or a checkpoint in it)")
        return
    facts["checkpoint_bytes"] = one
    faults += host.disk_faults(directory, one, options.checkpoints)
    looked.append(f"disk for {options.checkpoints} checkpoints of {one / 1e9:.2f} GB in {directory}")


def _tokenizers(options: EnvironmentOptions, faults: list[Fault], looked: list[str], not_seen: list[str]) -> None:
    facts = {role: read_facts(role, path) for role, path in options.models.items()}
    for one in facts.values():
        faults += [*own_faults(one), *version_faults(one, versions.installed().get("transformers"))]
    policy = facts.get("policy")
    if policy is None or len(facts) < 2:
        not_seen.append("whether tokenizers agree (--policy DIR with --reference DIR or --reward-model DIR)")
    else:
        for role, other in facts.items():
            if role != "policy":
                faults += pair_faults(policy, other, same_needed=role == "reference")
    if facts:
        looked.append(f"tokenizers of {', '.join(facts)}")


__all__ = ["EnvironmentOptions", "check_environment"]
