"""Logs of every format with a known cause: right layer, cause, step and rank, silence, or an honest abstention."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import own_logs
import pytest

from grpo_sentinel.cli import main
from grpo_sentinel.diagnosis.triage import diagnose
from grpo_sentinel.history.logs.lines import Line, read_lines


@pytest.mark.parametrize("name", own_logs.LOGS)
def test_the_cause_of_a_log_is_named(name: str, tmp_path: Path) -> None:
    make, layer, cause, step, rank = own_logs.LOGS[name]
    path = tmp_path / "run.log"
    path.write_text("\n".join(make()))
    verdict = diagnose(read_lines(path)).verdict
    assert verdict.layer == layer, f"{verdict.name}: {verdict.says}"
    assert cause in (None, verdict.name)
    assert step in (None, verdict.step)
    assert rank in (None, verdict.rank)
    if layer == "undetermined":
        assert verdict.confidence <= 0.35
        assert verdict.would_decide
    elif layer != "none":
        assert verdict.evidence


def test_the_logs_of_many_ranks_in_one_directory_are_read_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = own_logs.torchrun_reward_keyerror()
    (tmp_path / "rank0.log").write_text("\n".join(text for text in lines if not text.startswith("[rank1]")))
    with gzip.open(tmp_path / "rank1.log.gz", "wt") as file:
        file.write("\n".join(text for text in lines if text.startswith("[rank1]")))
    assert main(["diagnose", str(tmp_path), "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert body["verdict"]["layer"] == "reward"
    assert body["verdict"]["rank"] == 1
    assert len(body["read"]["sources"]) == 2


def test_lines_of_other_ranks_between_change_no_verdict() -> None:
    draw = random.Random(1)
    for name, (make, layer, *_) in own_logs.LOGS.items():
        mixed = []
        for text in make():
            mixed += [f"[rank{draw.randrange(4)}]: INFO still here, waiting for the others"] * draw.randrange(3)
            mixed.append(text)
        if name == "one of four ranks never comes":
            continue
        verdict = diagnose(Line("log", number, text) for number, text in enumerate(mixed, 1)).verdict
        assert verdict.layer == layer, f"{name}: {verdict.name}"


def test_exit_codes_say_none_cause_usage_and_undecided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, code in (("healthy swift", 0), ("GPU falls off the bus", 1), ("killed, by whom unknown", 4)):
        path = tmp_path / "x.log"
        path.write_text("\n".join(own_logs.LOGS[name][0]()))
        assert main(["diagnose", str(path)]) == code
    assert main(["diagnose", str(tmp_path / "gone.log")]) == 2
    capsys.readouterr()


def test_markdown_is_redacted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.log"
    path.write_text("\n".join(own_logs.illegal_access_only()))
    main(["diagnose", str(path), "--markdown"])
    text = capsys.readouterr().out
    assert "### Diagnosis" in text
    assert "10.0.0.3" not in text
    assert str(tmp_path) not in text
