"""Carry out the runs of a bench: ranks forked, watched by the real daemon, results stored one by one, resumable."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.faultbench import children
from benchmarks.faultbench.fault import EVER, LOOP1, LOOP2, Fault, Mechanism
from benchmarks.faultbench.rescore import described
from benchmarks.faultbench.sidecar import Sidecar
from benchmarks.faultbench.table import WORLDS

SETTINGS = json.dumps({"overhead_floor_seconds": 10.0})
"""Steps take 30 to 300 ms here and seconds elsewhere, on a machine that may be busy: nothing is thinned."""
WATCHED, ANOMALY = "watched", "anomaly"
_SETTLE = 1.6  # seconds after the last rank's end in which the daemon sees it and commits
_AFTER_DEATH = 8.0  # seconds that ranks may live on after the first has ended


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to make."""

    mechanism: Mechanism
    trainer: str
    seed: int
    mode: str = WATCHED  # or the peer's own run under torch.autograd.set_detect_anomaly

    @property
    def key(self) -> str:
        return f"{self.mechanism.name}-{self.trainer}-s{self.seed}" + ("" if self.mode == WATCHED else f"-{self.mode}")


@dataclass
class Going:
    """One run under way."""

    job: Job
    folder: Path
    run_id: str
    ranks: children.Children
    seen_at: float = 0.0


class Runner:
    """Runs jobs, up to `parallel` at a time."""

    def __init__(
        self, out: Path, sidecar: Sidecar, *, parallel: int = 2, tell: Callable[[str], None] = print, rules: str = ""
    ) -> None:
        self.out, self.sidecar, self.parallel, self.tell, self.rules = out, sidecar, parallel, tell, rules
        self.assets = out / "assets" / "loop.pt"

    def result_file(self, job: Job) -> Path:
        return self.out / "results" / f"{job.key}.json"

    def make(self, jobs: Iterable[Job], deadline: float = math.inf) -> int:
        """Make every job whose result is not stored yet, until `deadline` (monotonic); tells how many were made."""
        todo = [job for job in jobs if not self.result_file(job).is_file()]
        going: list[Going] = []
        try:
            return self._work_off(todo, going, deadline)
        finally:
            for one in going:
                one.ranks.end()

    def _work_off(self, todo: list[Job], going: list[Going], deadline: float) -> int:
        done = 0
        while todo or going:
            while todo and len(going) < self.parallel and time.monotonic() < deadline:
                going.append(self._start(todo.pop(0)))
            if not going:
                break
            time.sleep(0.05)
            for one in list(going):
                if self._over(one):
                    going.remove(one)
                    result = self._finish(one)
                    done += 1
                    said = ", ".join(f["rule"] for f in result["findings"][:4]) or "nothing"
                    self.tell(
                        f"{one.job.key}: {result['seconds']:.0f} s, codes {result['codes']}: {said} ({len(todo)} to go)"
                    )
        return done

    def _start(self, job: Job) -> Going:
        folder = self.out / "runs" / job.key
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run_id = f"{job.key}-{int(time.time())}"
        environment = {
            "GRPO_SENTINEL_DIR": str(self.sidecar.rings),
            "GRPO_SENTINEL_RUN_ID": run_id,
            "GRPO_SENTINEL_SETTINGS": SETTINGS,
        }
        ranks = children.start(folder, WORLDS[job.trainer], environment, lambda: work(job, folder, self.assets))
        return Going(job, folder, run_id, ranks)

    def _over(self, one: Going) -> bool:
        """Tell whether a run has ended; ends it when it hangs, has been seen through, or takes too long."""
        now = time.monotonic()
        age = now - one.ranks.started
        if one.ranks.poll():
            return now - one.ranks.first_end > _SETTLE and (now - one.ranks.started > 2)
        limit = one.job.mechanism.timeout + (120 if one.job.trainer not in (LOOP1, LOOP2) else 0)
        died = one.ranks.first_end and any(one.ranks.codes.values())
        if (died and now - one.ranks.first_end > _AFTER_DEATH) or age > limit:
            one.ranks.end()
        elif one.job.mechanism.ends and one.job.mode == WATCHED and int(age * 20) % 20 == 0:
            facts = _fault_facts(one.folder)
            if facts and any(f.step >= facts["step"] for f in self.sidecar.findings(one.run_id)):
                one.seen_at = one.seen_at or now
                if now - one.seen_at > 6:
                    one.ranks.end()
        return False

    def _finish(self, one: Going) -> dict[str, Any]:
        told = self.sidecar.first_told(one.run_id)
        findings = [
            described(finding, told.get(finding.finding_id, finding)) for finding in self.sidecar.findings(one.run_id)
        ]
        job = one.job
        result = {
            "key": job.key,
            "mechanism": job.mechanism.name,
            "trainer": job.trainer,
            "seed": job.seed,
            "mode": job.mode,
            "rules": self.rules,
            "run_id": one.run_id,
            "codes": {str(rank): code for rank, code in sorted(one.ranks.codes.items())},
            "seconds": round(time.monotonic() - one.ranks.started, 1),
            "fault": _fault_facts(one.folder),
            "last_step": _last_step(one.folder),
            "history_step": self.sidecar.last_step(one.run_id),
            "findings": findings,
            "requests": self.sidecar.requests(one.run_id),
            "checkpoints": checkpoints(one.folder),
            "loss_nonfinite": _rank_fact(one.folder, "losses"),
            "anomaly": _rank_fact(one.folder, "anomaly"),
        }
        place = self.result_file(job)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(result, indent=1))
        for old in one.folder.glob("checkpoint-*"):
            shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(one.folder.parent / "sentinel-pinned" / one.run_id, ignore_errors=True)
        for place in self.sidecar.rings.glob(f"*/{one.run_id}*"):
            shutil.rmtree(place, ignore_errors=True)
        return result


def work(job: Job, folder: Path, assets: Path) -> None:
    """What each rank does."""
    import torch

    if job.mode == ANOMALY:
        torch.autograd.set_detect_anomaly(True)
    mechanism = job.mechanism
    if job.trainer in (LOOP1, LOOP2):
        from benchmarks.faultbench.loop import Loop, configured

        steps = mechanism.config.get("steps", mechanism.steps)
        run: Any = Loop(
            folder,
            assets,
            configured({**mechanism.config, "steps": steps, "seed": job.seed}),
            attach=job.mode == WATCHED,
        )
    else:
        from benchmarks.faultbench.trl_run import TrlRun

        run = TrlRun(folder, mechanism, job.seed, attach=job.mode == WATCHED)
    if mechanism.start < EVER:
        mechanism = mechanism if WORLDS[job.trainer] > 1 else replace(mechanism, rank=None)
        mechanism.inject(Fault(mechanism, run))
    try:
        run.run()
    except RuntimeError as error:
        if job.mode == ANOMALY and "nan values" in str(error):
            (folder / f"anomaly-rank{run.sites.rank}.json").write_text(json.dumps(run.sites.step))
        raise
    finally:
        (folder / f"losses-rank{run.sites.rank}.json").write_text(json.dumps(run.losses_nonfinite))


def _fault_facts(folder: Path) -> dict[str, Any] | None:
    """When the fault first acted, on the rank where it did so first."""
    facts = []
    for file in folder.glob("fault-rank*.json"):
        with contextlib.suppress(ValueError, OSError):
            facts.append(json.loads(file.read_text()))
    return min(facts, key=lambda fact: fact["wall_ns"]) if facts else None


def _rank_fact(folder: Path, name: str) -> dict[str, Any]:
    out = {}
    for file in folder.glob(f"{name}-rank*.json"):
        with contextlib.suppress(ValueError, OSError):
            out[file.stem.rpartition("rank")[2]] = json.loads(file.read_text())
    return out


def _last_step(folder: Path) -> int:
    log = folder / "log.jsonl"
    lines = log.read_text().splitlines() if log.is_file() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def checkpoints(folder: Path) -> dict[str, bool]:
    """Every checkpoint of a run and whether all its weights are finite, read without torch."""
    out = {}
    for place in sorted(folder.glob("checkpoint-*"), key=lambda p: int(p.name.rpartition("-")[2])):
        files = list(place.glob("*.safetensors"))
        if files:
            out[place.name] = all(_finite(file) for file in files)
    return out


def _finite(file: Path) -> bool:
    import struct
    from array import array

    blob = file.read_bytes()
    (size,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + size])
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = blob[8 + size + begin : 8 + size + end]
        if entry["dtype"] == "F32":
            if not all(map(math.isfinite, array("f", raw))):
                return False
        elif entry["dtype"] == "BF16" and any((word & 0x7F80) == 0x7F80 for word in array("H", raw)):
            return False
    return True


def free_memory_gib() -> float:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable")) / 2**20


__all__ = ["ANOMALY", "WATCHED", "Job", "Runner", "checkpoints", "work"]
os.environ.setdefault("OMP_NUM_THREADS", "1")
