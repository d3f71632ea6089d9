"""What must hold after every run, checked from what is on disk by means of its own: plain files, safetensors, hashes.

half       a checkpoint that the sentinel calls good is whole: it loads, and is what the trainer said it had saved
pinned     what was pinned is there, whole, finite
steps      a checkpoint is claimed only when all ranks stopped at one step
bundle     a grave fault has a bundle, and it opens undamaged
culprit    right: the root names the rank; wrong: it names another one, alone; open: it names none, or several
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from chaos_plan import GRAVE, HANGS, NAN, Case
from chaos_sidecar import Sidecar

from benchmarks.faultbench.score import root_of
from grpo_sentinel.history import HistoryReader
from grpo_sentinel.incidents.bundle import open_bundle
from grpo_sentinel.preflight.checkpoint import Resumable, check_checkpoint
from grpo_sentinel.preflight.resume import resume_point
from grpo_sentinel.records import Action, FindingState, HaltState


def judge(case: Case, run: str, folder: Path, out: Path, sidecar: Sidecar, codes: dict[int, int]) -> dict[str, Any]:
    """Give everything about one run; `broken` lists the invariants that did not hold."""
    broken: list[str] = []
    saved = {row["name"]: row["sha256"] for row in _lines(folder / "saved.jsonl")}
    everything = [*out.glob("checkpoint-*"), *(out.parent / "sentinel-pinned" / run).glob("checkpoint-*")]
    for place in everything:
        report = check_checkpoint(place)
        if report.resumable is Resumable.YES and (why := _not_whole(place, saved)):
            broken.append(f"half: check checkpoint passes {place.name}: {why}")
    with HistoryReader(sidecar.state / "history.sqlite") as reader:
        chosen = resume_point(out, [(reader, sidecar.state)])
        if chosen.path is not None and (why := _not_whole(chosen.path, saved)):
            broken.append(f"half: resume-point chose {chosen.path.name}: {why}")
    broken += _pinned(run, out, sidecar, saved)
    ranks = {rank: _json(folder / f"rank{rank}.json") for rank in (0, 1)}
    broken += _steps(ranks, run, sidecar, saved, case)
    bundles, damage = _bundles(run, sidecar)
    once = case.fault == NAN and case.halting  # one update that was skipped before the halt is a warning
    if case.fault in GRAVE and not once and (folder / "fault.json").exists() and not bundles:
        broken.append("bundle: a grave fault and no bundle")
    broken += damage
    if bundles and case.fault in HANGS and not any(list((path / "stacks").glob("*.txt")) for path in bundles):
        broken.append("bundle: a hang, and no stacks of the ranks")
    findings = [_row(one) for one in sidecar.findings(run)]
    named = _named(findings)
    acted = (folder / "fault.json").exists()
    verdict = "none" if case.culprit is None or not acted else "open"
    if named is not None and len(named) == 1:
        if case.rank not in named or case.fault not in GRAVE or not acted:
            verdict = "wrong"
            broken.append(f"culprit: rank {named[0]} is named with confidence")
        else:
            verdict = "right"
    return {
        "name": case.name, "trainer": case.trainer, "fault": case.fault, "rank": case.rank, "moment": case.moment,
        "known": case.culprit is not None, "acted": acted, "culprit": verdict, "named": named, "broken": broken,
        "told_after_s": _told_after(folder / "fault.json", findings), "codes": codes, "steps": ranks, "resume": chosen.path and chosen.path.name, "bundles": len(bundles), "pinned": len(_pins(run, sidecar)),
        "checkpoints": len(everything), "findings": findings,
        "requests": [f"{one.action.name} {one.state.name} step {one.step}" for one in sidecar.requests(run)],
    }  # fmt: skip


def _named(findings: list[dict[str, Any]]) -> list[int] | None:
    grave = [one for one in findings if one["severity"] != "note"]
    return list(root_of(grave)["ranks"]) if grave else None


def _told_after(file: Path, findings: list[dict[str, Any]]) -> float | None:
    """Seconds from the fault to the first critical finding, in wall time."""
    began = (_json(file) or {}).get("wall_ns")
    told = [one["wall_ns"] for one in findings if one["severity"] == "critical"]
    return round((min(told) - began) / 1e9, 3) if began and told else None


def _row(one: Any) -> dict[str, Any]:
    return {
        "rule": one.rule, "severity": one.severity.name.lower(), "step": one.step, "onset": one.onset_step,
        "ranks": list(one.ranks), "id": one.finding_id, "root": one.root_id, "layer": one.layer,
        "wall_ns": one.wall_ns, "message": one.message[:200], "firing": one.state is FindingState.FIRING,
    }  # fmt: skip


def _not_whole(place: Path, saved: dict[str, str]) -> str:
    """Say why a checkpoint cannot be a good one; "" when it is."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights = place / "model.safetensors"
    try:
        tensors = load_file(weights)
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            return "weights are not finite"
        step = json.loads((place / "trainer_state.json").read_text())["global_step"]
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    if step != int(place.name.rpartition("-")[2]):
        return f"its state is of step {step}"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return "" if saved.get(place.name, digest) == digest else "its weights are not those that were saved"


def _pinned(run: str, out: Path, sidecar: Sidecar, saved: dict[str, str]) -> list[str]:
    broken = []
    for place in _pins(run, sidecar):
        why = "it is gone" if not place.is_dir() else _not_whole(place, saved)
        if why:
            broken.append(f"pinned: {place.name}: {why}")
    return broken


def _pins(run: str, sidecar: Sidecar) -> list[Path]:
    """What the sidecar said it had pinned."""
    told = map(Path, re.findall(r"kept (\S+): the newest checkpoint", sidecar.log()))
    return [place for place in told if run in place.parts]


def _steps(ranks: dict[int, Any], run: str, sidecar: Sidecar, saved: dict[str, str], case: Case) -> list[str]:
    broken = []
    stopped = {rank: facts["halted_at"] for rank, facts in ranks.items() if facts and facts["halted_at"]}
    for one in sidecar.requests(run):
        if one.action is Action.CHECKPOINT_AND_HALT and one.state is HaltState.DONE:
            if len(stopped) != 2 or set(stopped.values()) != {one.step}:
                broken.append(f"steps: halt claimed at {one.step}, ranks stopped at {stopped}")
            if one.detail and Path(one.detail).name not in saved:
                broken.append(f"steps: {one.detail} is claimed and was never saved")
    if len(set(stopped.values())) > 1:
        broken.append(f"steps: ranks stopped at {stopped}")
    if case.fault == NAN and len(stopped) != 2 and not case.halting:
        broken.append(f"steps: three skipped updates and no halt of both ranks: {stopped}")
    return broken


def _bundles(run: str, sidecar: Sidecar) -> tuple[list[Path], list[str]]:
    found, broken = sidecar.bundles(run), []
    for path in found:
        try:
            with open_bundle(path) as bundle:
                broken += [f"bundle: {path.name}: {one}" for one in bundle.damage()]
                if not (bundle.path / "report.md").is_file() or not bundle.findings():
                    broken.append(f"bundle: {path.name} tells nothing")
        except Exception as error:  # noqa: BLE001 - whatever it is, the bundle does not open
            broken.append(f"bundle: {path.name} does not open: {error}")
    return found, broken


def _json(file: Path) -> Any:
    return json.loads(file.read_text()) if file.is_file() else None


def _lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
