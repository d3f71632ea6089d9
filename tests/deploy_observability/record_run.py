"""Record what /metrics says during a real run, for the tests of the dashboards: `python record_run.py`.

The demo's TRL run (two ranks, a fault on one of them) under `grpo-sentinel launch`, with the fake NVML library in place
of two GPUs, scraped every second. Written to recorded_run.json.gz:

    {"families": {name: [kind, help]}, "times": [seconds, ...], "series": {"name{labels}": [value or null, ...]}}
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORDING = HERE / "recorded_run.json.gz"
ACCEPT = {"Accept": "application/openmetrics-text;version=1.0.0"}
GPU = {
    "memory_total": 85_520_809_984, "temperature": 64, "field82": 71, "power_milliwatts": 612_000,
    "power_limit_milliwatts": 700_000, "memory_megahertz": 2619, "memory_utilization": 40, "memory_reserved": 500_000_000,
    "clock_events": 4, "ecc_corrected": 3, "ecc_uncorrected": 0, "remap_pending": 0, "remap_failed": 0,
    "pcie_replays": 2, "slices": 0,
}  # fmt: skip
STATE = "/var/lib/grpo-sentinel"
STEPS, SCRAPES, FAULT = "320", 400, "reward_constant:step=160,until=230"


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="recorded-"))
    flags = ["-O1", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    source = ROOT / "tests" / "fakenvml" / "fakenvml.c"
    subprocess.run(["gcc", *flags, "-o", folder / "libnvidia-ml.so.1", source], check=True, timeout=60)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    config = folder / "sentinel.yaml"
    config.write_text(json.dumps({
        "state_dir": str(folder / "state"), "http": {"port": port}, "launch": {"linger_seconds": 6},
        "collectors": {"nvml": {"interval_seconds": 1}, "host": {"interval_seconds": 1}},
    }))  # fmt: skip
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "DEMO_FAULT": FAULT, "GRPO_SENTINEL": "1",
        "GRPO_SENTINEL_DIR": str(folder), "GRPO_SENTINEL_RUN_ID": "demo", "LD_LIBRARY_PATH": str(folder),
        "FAKE_NVML_STATE": str(folder / "nvml"), "FAKE_NVML_EVENTS": str(folder / "xid"),
    }  # fmt: skip
    _gpus(folder, 0)
    bin_dir = Path(sys.executable).parent
    argv = [bin_dir / "grpo-sentinel", "launch", "--config", config, "--", bin_dir / "torchrun", "--standalone"]
    argv += ["--nproc_per_node", "2", ROOT / "examples" / "demo" / "train.py", "--output-dir", folder / "run"]
    argv += ["--assets", ROOT / "build" / "demo-assets", "--steps", STEPS]
    run = subprocess.Popen(argv, env=environment, start_new_session=True)
    scrapes: list[tuple[float, str]] = []
    try:
        while run.poll() is None and len(scrapes) < SCRAPES:
            _gpus(folder, len(scrapes))
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=ACCEPT)
                with urllib.request.urlopen(request, timeout=5) as answer:
                    text = answer.read().decode()
                if "grpo_sentinel_rank_step{" in text:
                    text = text.replace(str(folder / "state"), STATE).replace(str(folder), STATE)
                    scrapes.append((time.time(), text))
            except OSError:
                pass
            time.sleep(1.0)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGTERM)
        run.wait(60)
    RECORDING.write_bytes(gzip.compress(json.dumps(packed(scrapes), separators=(",", ":")).encode(), 9, mtime=0))
    print(f"{len(scrapes)} scrapes, {RECORDING.stat().st_size} bytes, exit code of the run {run.returncode}")
    return 0


def _gpus(folder: Path, turn: int) -> None:
    """Two GPUs: the memory of the second one fills slowly, and its driver reports an Xid now and then."""
    lines = ["count=2"]
    for index in range(2):
        now = {
            **GPU, "memory_used": 40_000_000_000 + (turn * 20_000_000 if index else 0),
            "utilization": 60 + (turn * 7 + index * 13) % 40, "sm_megahertz": 1980 - 300 * index,
            "energy_millijoules": 1_000_000 + 612_000 * turn,
        }  # fmt: skip
        lines += [f"{index}.{name}={value}" for name, value in now.items()]
    draft = folder / "nvml.new"
    draft.write_text("\n".join(lines) + "\n")
    draft.replace(folder / "nvml")
    if turn in (60, 90):
        with (folder / "xid").open("a") as file:
            file.write("1 63\n")


def packed(scrapes: list[tuple[float, str]]) -> dict[str, object]:
    """Put the scrapes side by side."""
    families: dict[str, list[str]] = {}
    series: dict[str, list[float | str | None]] = {}
    for index, (_, text) in enumerate(scrapes):
        for line in text.splitlines():
            words = line.split(" ", 3)
            if words[0] == "#" and words[1] in ("HELP", "TYPE"):
                slot = families.setdefault(words[2], ["", ""])
                slot[words[1] == "HELP"] = words[3]
            elif words[0] != "#":
                name, _, value = line.rpartition(" ")
                column = series.setdefault(name, [])
                column += [None] * (index - len(column))
                number = float(value)
                column.append(float(f"{number:.6g}") if abs(number) < 1e8 and number - number == 0 else _plain(number))
    return {"families": families, "times": [round(at, 3) for at, _ in scrapes], "series": series}


def _plain(number: float) -> float | str:
    return number if number - number == 0 else str(number)


if __name__ == "__main__":
    sys.exit(main())
