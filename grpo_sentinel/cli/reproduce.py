"""`grpo-sentinel reproduce`: run the captured step of an incident again, with the user's own model, and compare.

This process needs no torch: the step runs in one of its own (`grpo_sentinel.agent.capture.rerun`).
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import click

from grpo_sentinel.cli.incident import find_bundle
from grpo_sentinel.cli.runs import settings_of_all
from grpo_sentinel.cli.sidecar import describe
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.incidents.bundle import Bundle, open_bundle

_CAPTURE = re.compile(r"tensors/rank-(\d{5,})-step-(\d+)-(\w+)\.safetensors")


class CannotReproduce(SentinelError):
    """The step cannot be run again; the text says why and what to do."""


@click.command()
@click.argument("name", metavar="BUNDLE")
@click.option("--builder", required=True, metavar="MODULE:FUNCTION", help="Gives (model, loss_fn), or a trainer.")
@click.option("--rank", type=int, metavar="N", help="Whose step; default: the culprit's, else the first captured.")
@click.option("--step", type=int, metavar="N", help="Which step; default: the first captured.")
@click.option("--anomaly", is_flag=True, help="Also name the operation that made the first NaN.")
@click.option("--tolerance", type=float, default=1e-3, show_default=True, help="Relative, for loss and gradient norm.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--config", "config_path", metavar="FILE", help="Settings of the sidecar, for its state directory.")
def reproduce(
    name: str,
    builder: str,
    rank: int | None,
    step: int | None,
    anomaly: bool,
    tolerance: float,
    as_json: bool,
    config_path: str | None,
) -> int:
    """Run the captured step of BUNDLE again and compare loss, gradient norm and non-finite gradients.

    BUNDLE: an incident's id, its folder or tar.gz, or one captured file. Exit code 0: reproduced; 1: another outcome;
    2: it cannot be run again.
    """
    if importlib.util.find_spec("torch") is None:
        raise CannotReproduce("this Python has no torch; run the command in the trainer's environment")
    given = Path(name)
    if given.is_file() and given.suffix == ".safetensors":
        return _run(given, builder, anomaly, tolerance, as_json)
    with open_bundle(find_bundle(settings_of_all(config_path), name)) as bundle:
        return _run(bundle.path / _chosen(bundle, rank, step), builder, anomaly, tolerance, as_json)


def _chosen(bundle: Bundle, rank: int | None, step: int | None) -> str:
    """Pick one captured file. Raises `CannotReproduce` naming what there is."""
    names = [str(entry["name"]) for entry in bundle.manifest.get("files", [])]
    found = [(int(m[1]), int(m[2]), name) for name in names if (m := _CAPTURE.fullmatch(name)) and m[3] != "reward"]
    if not found:
        why = bundle.manifest.get("missing", {}).get("tensors", "the agent captured none")
        remedy = "ask again with `grpo-sentinel capture`" if "gave way" in why else "agent.capture must be on"
        raise CannotReproduce(f"{bundle.path.name} holds no captured step ({why}); {remedy}")
    fits = [one for one in found if rank in (None, one[0]) and step in (None, one[1])]
    if not fits:
        there = ", ".join(f"rank {r} step {s}" for r, s, _ in sorted(found))
        raise CannotReproduce(f"no capture of that rank and step; there are: {there}")
    findings = bundle.source().findings
    culprits = findings[0].ranks if findings else ()
    return min(fits, key=lambda one: (one[0] not in culprits, one[1], one[0]))[2]


def _run(path: Path, builder: str, anomaly: bool, tolerance: float, as_json: bool) -> int:
    words = [sys.executable, "-m", "grpo_sentinel.agent.capture.rerun", str(path), "--builder", builder]
    words += ["--tolerance", repr(tolerance), *(["--anomaly"] if anomaly else []), *(["--json"] if as_json else [])]
    code = subprocess.run(words, check=False).returncode
    if code not in (0, 1, 2):
        raise CannotReproduce(f"the step could not be run again: its process ended with {describe(code)}")
    return code


__all__ = ["CannotReproduce", "reproduce"]
