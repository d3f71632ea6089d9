"""A piped table fits 100 columns, or COLUMNS, one line a row, and says what it left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rich.text import Text

from grpo_sentinel.cli import main
from grpo_sentinel.cli.rendering import fitted
from grpo_sentinel.rules import load_rules


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    main(list(words))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [None, 80, 120])
def test_the_list_of_rules_has_one_line_a_rule(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int | None
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    lines = shown(capsys, "rules", "list")
    rules = list(load_rules())
    assert max(map(len, lines)) <= (columns or 100)
    assert [line.split()[0] for line in lines[1 : len(rules) + 1]] == [rule.name for rule in rules]
    assert "--wide shows it" in lines[len(rules) + 1]
    wide = shown(capsys, "rules", "list", "--wide")
    assert all(", ".join(rule.signals) in line for rule, line in zip(rules, wide[1:], strict=False))
    assert "--wide" not in " ".join(wide)


def test_findings_of_a_replay_are_cut_and_in_full_with_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    log = tmp_path / "log.jsonl"
    rows = ({"step": step, "loss": 0.1, "reward": 1.0, "grad_norm": float("nan")} for step in range(1, 30))
    log.write_text("".join(json.dumps(row) + os.linesep for row in rows))
    cut, wide = shown(capsys, "replay", str(log)), shown(capsys, "replay", str(log), "--wide")
    at = next(at for at, line in enumerate(cut) if line.startswith("since"))
    rows_cut = [line for line in cut[at:] if line.endswith("…")]
    assert rows_cut
    assert all(len(line) <= 80 for line in cut[at:])
    assert any("--wide" in line for line in cut)
    assert not any("…" in line or "--wide" in line for line in wide)
    assert any("grad_nonfinite" in line for line in rows_cut), "the rule stays, the sentence is cut"


def test_only_what_is_named_is_spared_and_nothing_where_there_is_room() -> None:
    rows = [[Text("a" * 10), Text("b" * 10), Text("c" * 50)]]
    assert fitted(("one", "two", "three"), rows, 74)[1] == []
    lines, left_out = fitted(("one", "two", "three"), rows, 73, ("two",))
    assert (left_out, lines[1].plain) == (["two"], "a" * 10 + "  " + "c" * 50)
    lines, left_out = fitted(("one", "two", "three"), rows, 70, (), cut=True)
    assert (left_out, lines[1].cell_len, lines[1].plain[-1]) == (["three"], 70, "…")
