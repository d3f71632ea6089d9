"""Starts real ranks as processes, waits with a limit, ends what is left by pid, and hands their results over."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(folder: Path, **extra: str) -> dict[str, str]:
    """A clean environment: one thread, our package, rings under `folder`."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("GRPO_SENTINEL", "TORCHELASTIC", "SLURM", "RANK", "WORLD"))
    }
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent), str(ROOT / "tests" / "integrations")]),
        "OMP_NUM_THREADS": "1",
        "GRPO_SENTINEL_DIR": str(folder / "rings"),
        "GRPO_SENTINEL_RUN_ID": "run",
        "HF_HUB_OFFLINE": "1",
        **extra,
    }


def start_ranks(
    script: Path, arguments: list[str], folder: Path, world: int, python: Path | str = sys.executable, **extra: str
) -> list[subprocess.Popen]:
    port = str(free_port())
    started = []
    for rank in range(world):
        env = environment(folder, **extra)
        if world > 1:
            env |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
        log = open(folder / f"rank{rank}.log", "w")  # noqa: SIM115 - the child inherits it
        started.append(
            subprocess.Popen([str(python), str(script), *arguments], env=env, stdout=log, stderr=subprocess.STDOUT)
        )
        log.close()
    return started


def wait_for(processes: list[subprocess.Popen], timeout_s: float = 120.0) -> list[int]:
    deadline = time.monotonic() + timeout_s
    try:
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait(10)


class Result:
    """What the ranks left of one scenario: their JSON, their stderr, their segments."""

    def __init__(self, folder: Path, world: int) -> None:
        self.folder = folder
        self.logs = [(folder / f"rank{rank}.log").read_text() for rank in range(world)]
        self.ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world)]

    def segment(self, rank: int, root: str | None = None, run: str = "run"):
        from grpo_sentinel.protocol import RankReader, run_dir

        reader = RankReader(run_dir(Path(root or self.folder / "rings"), run) / f"rank-{rank:05d}.ring")
        try:
            return Segment(reader)
        finally:
            reader.close()


class Segment:
    def __init__(self, reader) -> None:
        batch = reader.poll(None)
        self.records, self.events = batch.records, batch.events
        self.ack, self.closed = reader.acknowledgement(), reader.closed

    def of(self, kind: str) -> list[dict]:
        return [{**event.body, "step": event.step} for event in self.events if event.kind == kind]

    def steps(self) -> dict[int, dict[str, float]]:
        from grpo_sentinel.records import Kind

        return {record.step: dict(record.values) for record in self.records if record.kind is Kind.STEP}


class Scenarios:
    """Named scenarios of one world size, run by one set of processes when the first of them is asked for."""

    def __init__(self, script: Path, folder: Path, world: int, options: dict[str, dict], *arguments: str, **env: str):
        self.options = options
        self._start = (script, folder, world, arguments, env)
        self._ran = False

    def __getitem__(self, name: str) -> Result:
        script, folder, world, arguments, env = self._start
        if not self._ran:
            self._ran = True
            self._run(script, folder, world, arguments, env)
        return Result(folder / name, world)

    def _run(self, script: Path, folder: Path, world: int, arguments: tuple[str, ...], env: dict[str, str]) -> None:
        listed = [{"folder": str(folder / name), "options": options} for name, options in self.options.items()]
        for one in listed:
            Path(one["folder"]).mkdir(parents=True)
        (folder / "scenarios.json").write_text(json.dumps(listed))
        codes = wait_for(
            start_ranks(script, [str(folder / "scenarios.json"), *arguments], folder, world, **env), timeout_s=280
        )
        logs = [(folder / f"rank{rank}.log").read_text() for rank in range(world)]
        assert codes == [0] * world, f"exit codes {codes}\n" + "\n".join(logs)[-6000:]
