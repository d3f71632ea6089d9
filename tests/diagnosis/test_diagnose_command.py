"""`grpo-sentinel diagnose` on state files, damage, standard input, and a log that grows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import own_logs

from grpo_sentinel.cli import main
from grpo_sentinel.diagnosis.triage import judge
from grpo_sentinel.diagnosis.verdict import LAYERS
from grpo_sentinel.diagnosis.view import LogView
from grpo_sentinel.history.logs.lines import Line


def test_a_trainer_state_is_read_entry_by_entry_also_when_it_is_cut_off(tmp_path: Path, capsys) -> None:
    path = tmp_path / "trainer_state.json"
    entries = [
        {"step": s, "loss": 0.0, "grad_norm": float("nan") if s >= 7 else 0.4, "reward": 0.5} for s in range(1, 30)
    ]
    text = json.dumps({"log_history": entries})
    path.write_text(text[: len(text) * 2 // 3])
    assert main(["diagnose", str(path), "--json"]) == 1
    out = capsys.readouterr()
    assert json.loads(out.out)["verdict"]["step"] == 7
    assert "cut off" in out.err
    path.write_text("{")
    assert main(["diagnose", str(path)]) == 4


def test_every_field_of_the_json_stands_in_the_guide(tmp_path: Path, capsys) -> None:
    path = tmp_path / "x.log"
    path.write_text("\n".join(own_logs.residue_then_oom()))
    main(["diagnose", str(path), "--json"])
    body = json.loads(capsys.readouterr().out)
    guide = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text()
    assert body["schema"] in guide
    assert body["verdict"]["layer"] in LAYERS
    for name in [*body, *body["verdict"], *body["evidence"][0], *body["chain"][0], *body["read"]]:
        assert f"`{name}" in guide or f".{name}`" in guide, name
    for layer in LAYERS:
        assert f"`{layer}`" in guide


def test_a_table_and_event_files_are_read_row_by_row(tmp_path: Path, capsys) -> None:
    path = tmp_path / "history.csv"
    rows = [f"{s},0.01,{0.4 if s < 8 else 'nan'},0.{s % 5 + 1},0.2,train" for s in range(1, 20)]
    path.write_text("\n".join(["step,train/loss,train/grad_norm,train/reward,train/reward_std,split", *rows]))
    assert main(["diagnose", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"]["step"] == 8


def test_standard_input_is_read() -> None:
    text = "\n".join(own_logs.kernel_oom())
    command = [sys.executable, "-m", "grpo_sentinel.cli", "diagnose", "-", "--json"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"]["layer"] == "memory"


def test_a_growing_log_is_judged_anew_when_it_has_grown(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("\n".join(own_logs.healthy_trl_zero_loss()[:30]) + "\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "grpo_sentinel.cli", "diagnose", str(path), "--follow"],
        stdout=subprocess.PIPE,
        text=True,
    )
    seen: list[str] = []
    healthy, broken = threading.Event(), threading.Event()

    def read() -> None:
        for line in process.stdout:
            seen.append(line)
            (healthy if line.startswith("none") else broken if line.startswith("data") else threading.Event()).set()

    threading.Thread(target=read, daemon=True).start()
    try:
        assert healthy.wait(60)
        with path.open("a") as file:
            file.write("\n".join(own_logs.device_assert()) + "\n")
        assert broken.wait(60), seen
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(10)


def test_a_full_view_of_a_long_log_is_judged_quickly() -> None:
    view = LogView()
    for step in range(1, 9000):
        view.feed(Line("log", step, own_logs.verl(step % 50 + 1)))
    started = time.process_time()
    judge(view)
    assert time.process_time() - started < 5


def test_the_null_device_is_an_empty_log(capsys) -> None:
    assert main(["diagnose", "/dev/null"]) == 4
    out = capsys.readouterr()
    assert "0 lines" in out.out
    assert "no such log" not in out.err
    assert main(["diagnose", "/dev/zero"]) == 2
    assert "neither a file nor a directory" in capsys.readouterr().err
