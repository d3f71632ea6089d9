"""Random faults against real ranks and a real sidecar, run after run; results are kept one by one, so it can be resumed.

    python tests/chaos/chaos_series.py build/chaos.json      CHAOS_RUNS=200 CHAOS_PARALLEL=3 CHAOS_SECONDS=3600
    CHAOS_HALTING=1 ...                                      another series: every fault in or about a halt
    CHAOS_RESTART=1 CHAOS_ONLY=hang_reward ...               the sidecar is killed once the rank hangs, and started again

Ranks are forked from this process, which has imported torch and TRL: a run costs seconds. Every run has a limit, and
ends what it started. Exit code 1 when an invariant was broken or fewer than 95 % of the culprits were named.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE), str(HERE.parent / "integrations")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from chaos_judge import judge  # noqa: E402
from chaos_plan import DAEMON, DISK, GRAVE, HANGS, TRL, Case, draw  # noqa: E402
from chaos_sidecar import Sidecar  # noqa: E402

from benchmarks.faultbench import children  # noqa: E402

LIMIT_SECONDS = 150.0
AFTER_DEATH_SECONDS = 25.0  # in which the others have to follow a rank that died
DOWN_SECONDS = 1.0  # of a sidecar that was killed


@dataclass
class Going:
    """A run under way in a slot."""

    case: Case
    run: str
    folder: Path
    ranks: children.Children
    killed: float = 0.0
    seen: float = 0.0
    asked: bool = False
    mounts: list[Path] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.folder / "out"


class Slot:
    """One sidecar and the runs that it watches, one after the other."""

    def __init__(self, folder: Path, assets: Path | None) -> None:
        self.folder, self.assets = folder, assets
        self.sidecar = Sidecar(folder / "sidecar")
        self.going: Going | None = None

    def begin(self, case: Case) -> None:
        folder = self.folder / case.name
        folder.mkdir(parents=True)
        out = folder / "out"
        out.mkdir()
        run = f"chaos-{case.name}"
        going = Going(case, run, folder, None, mounts=_small_disk(out) if case.fault == DISK else [])  # type: ignore[arg-type]
        environment = {
            "GRPO_SENTINEL_DIR": str(self.sidecar.rings),
            "GRPO_SENTINEL_RUN_ID": run,
            "GRPO_SENTINEL_SETTINGS": json.dumps({"overhead_floor_seconds": 0.05}),
        }
        assets = self.assets
        going.ranks = children.start(folder, 2, environment, lambda: _work(case, folder, out, assets))
        self.going = going

    def look(self) -> bool:
        """Tell whether the run is over; ends it when it hangs and has been told of, or takes too long."""
        going = self.going
        assert going is not None
        now, case = time.monotonic(), going.case
        acted = (going.folder / "fault.json").exists()
        if case.fault == DAEMON:
            saved = (going.out / f"checkpoint-{case.step - case.step % 2}").exists()
            self._kill_the_sidecar(going, now, saved)
        elif os.environ.get("CHAOS_RESTART") == "1":
            self._kill_the_sidecar(going, now, acted)
        if case.halting and not going.asked and (going.folder / "ask").exists():
            going.asked = True
            self._halt(going)
        if going.ranks.poll():
            return True
        if case.fault in HANGS and acted and self._told(going):
            going.seen = going.seen or now
        died = going.ranks.first_end and any(going.ranks.codes.values())
        if (
            now - going.ranks.started > LIMIT_SECONDS
            or (going.seen and now - going.seen > 3.0)
            or (died and now - going.ranks.first_end > AFTER_DEATH_SECONDS)
        ):
            going.ranks.end()
            return True
        return False

    def _halt(self, going: Going) -> None:
        """Ask as `grpo-sentinel halt` does; a sidecar that is down, or a run that has died, cannot be asked."""
        from grpo_sentinel.cli.halt import make_request
        from grpo_sentinel.config import load_config
        from grpo_sentinel.errors import SentinelError
        from grpo_sentinel.records import Action

        with contextlib.suppress(SentinelError, OSError):
            make_request(load_config(str(self.sidecar.config)), going.run, Action.CHECKPOINT_AND_HALT, "chaos")

    def _told(self, going: Going) -> bool:
        found = [one for one in self.sidecar.findings(going.run) if one.severity.name == "CRITICAL"]
        return bool(found) and bool(self.sidecar.bundles(going.run))

    def _kill_the_sidecar(self, going: Going, now: float, due: bool) -> None:
        if not going.killed and due:
            self.sidecar.kill()
            if going.case.fault == DAEMON:
                (going.folder / "fault.json").write_text("{}")
            going.killed = now
        elif going.killed and not self.sidecar.alive() and now - going.killed > DOWN_SECONDS:
            self.sidecar.start()

    def finish(self) -> dict[str, Any]:
        going, self.going = self.going, None
        assert going is not None
        if not self.sidecar.alive():
            self.sidecar.start()
        seconds = time.monotonic() - going.ranks.started
        try:
            acted = (going.folder / "fault.json").exists()
            self.sidecar.settle(going.run, going.case.fault in GRAVE and acted, 30.0)
            result = judge(going.case, going.run, going.folder, going.out, self.sidecar, going.ranks.codes)
        finally:
            for place in going.mounts:
                subprocess.run(["umount", str(place)], check=False, capture_output=True)
        result["seconds"] = round(seconds, 1)
        if not result["broken"] and result["culprit"] != "open" and os.environ.get("CHAOS_KEEP") != "1":
            shutil.rmtree(going.folder, ignore_errors=True)
            shutil.rmtree(self.sidecar.rings / going.run, ignore_errors=True)
        return result

    def close(self) -> None:
        if self.going is not None:
            self.going.ranks.end()
            for place in self.going.mounts:
                subprocess.run(["umount", str(place)], check=False, capture_output=True)
        self.sidecar.close()


def _small_disk(place: Path) -> list[Path]:
    """Put a file system of 4 MB there, where that is allowed; else a limit on the size of files stands in for it."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=False, capture_output=True
    )
    return [place] if done.returncode == 0 else []


def _work(case: Case, folder: Path, out: Path, assets: Path | None) -> None:
    """What each rank does; what leaves it goes the way of an uncaught exception first."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        if case.trainer == TRL:
            import chaos_trl

            assert assets is not None
            chaos_trl.run(case, folder, out, assets)
        else:
            import chaos_loop

            chaos_loop.run(case, folder, out)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise


def carry_out(cases: Iterable[Case], file: Path, *, parallel: int = 1, seconds: float = 1e9) -> list[dict[str, Any]]:
    """Make every run that `file` does not hold yet, until `seconds` are over; gives all results, old and new."""
    results: dict[str, dict[str, Any]] = {}
    if file.is_file():
        results = {row["name"]: row for row in json.loads(file.read_text())["runs"]}
    wanted = list(cases)
    todo = [case for case in wanted if case.name not in results]
    for case in wanted:
        if case.name in results:
            results[case.name]["known"] = case.culprit is not None  # what can be known is the plan's to say
    if not todo:
        _store(file, results)
        return [results[case.name] for case in wanted]
    work = Path(tempfile.mkdtemp(prefix="sentinel-chaos-"))
    assets = _import_all(work, any(case.trainer == TRL for case in todo))
    deadline = time.monotonic() + seconds
    slots = [Slot(work / f"slot{number}", assets) for number in range(min(parallel, len(todo)))]
    try:
        while todo or any(slot.going for slot in slots):
            for slot in slots:
                if slot.going is None and todo and time.monotonic() < deadline:
                    slot.begin(todo.pop(0))
                if slot.going is not None and slot.look():
                    result = slot.finish()
                    results[result["name"]] = result
                    _store(file, results)
                    said = "; ".join(result["broken"]) or f"culprit {result['culprit']}"
                    print(f"{result['name']}: {result['seconds']:.0f} s, {said}", flush=True)
            if time.monotonic() >= deadline and not any(slot.going for slot in slots):
                break
            time.sleep(0.05)
    finally:
        for slot in slots:
            slot.close()
        if all(not row["broken"] for row in results.values()):
            shutil.rmtree(work, ignore_errors=True)
        else:
            print(f"what is left of broken runs: {work}", file=sys.stderr)
    names = {case.name for case in wanted}
    return [row for name, row in results.items() if name in names]


def _import_all(work: Path, trl: bool) -> Path | None:
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    import chaos_loop  # noqa: F401

    if not trl:
        return None
    code = f"import sys; sys.path.insert(0, {str(HERE.parent / 'integrations')!r}); import tiny, pathlib; "
    code += f"tiny.build(pathlib.Path({str(work / 'assets')!r}))"
    (work / "assets").mkdir()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    import chaos_trl  # noqa: F401

    return work / "assets"


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum up a series."""
    acted = [row for row in results if row["acted"]]
    known = [row for row in acted if row["known"]]
    right = sum(row["culprit"] == "right" for row in known)
    return {
        "runs": len(results),
        "trl_runs": sum(row["trainer"] == TRL for row in results),
        "fault_acted": len(acted),
        "broken": sum(bool(row["broken"]) for row in results),
        "culprit_known": len(known),
        "culprit_right": right,
        "culprit_right_share": round(right / len(known), 4) if known else None,
        "wrong_with_confidence": sum(row["culprit"] == "wrong" for row in results),
        "bundles": sum(row["bundles"] for row in results),
        "pinned": sum(row.get("pinned", 0) for row in results),
        "halts_claimed": sum(any("HALT DONE" in one for one in row["requests"]) for row in results),
        "by_fault": {
            fault: sum(row["fault"] == fault for row in results) for fault in sorted({r["fault"] for r in results})
        },
    }


def _store(file: Path, results: dict[str, dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    rows = [results[name] for name in sorted(results)]
    partial.write_text(json.dumps({"summary": summary(rows), "runs": rows}, indent=1))
    partial.rename(file)


def main() -> int:
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "build/chaos.json").resolve()
    count = int(os.environ.get("CHAOS_RUNS", "200"))
    parallel, seconds = int(os.environ.get("CHAOS_PARALLEL", "2")), float(os.environ.get("CHAOS_SECONDS", "1e9"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    only = os.environ.get("CHAOS_ONLY", "")
    halting = os.environ.get("CHAOS_HALTING") == "1"
    cases = [case for case in draw(count, 6 if halting else 5, halting=halting) if only in case.name]
    with contextlib.suppress(KeyboardInterrupt):
        results = carry_out(cases, file, parallel=parallel, seconds=seconds)
        total = summary(results)
        print(json.dumps(total, indent=1))
        return 1 if total["broken"] or (total["culprit_right_share"] or 0) < 0.95 else 0
    return 130


if __name__ == "__main__":
    raise SystemExit(main())
