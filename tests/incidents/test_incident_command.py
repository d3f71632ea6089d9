"""`grpo-sentinel incident`: a person finds, reads, hands on and replays a bundle."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import sentinel_batches as made
from incident_world import World

from grpo_sentinel.cli import main
from grpo_sentinel.config import RulesConfig
from grpo_sentinel.rules import Engine, load_rules


@pytest.fixture
def config(world: World, tmp_path: Path) -> str:
    path = tmp_path / "sentinel.yaml"
    path.write_text(f"state_dir: {world.state}\n")
    return str(path)


def ruin(world: World) -> None:
    """Fifteen healthy steps, then NaN rewards on rank 1 and what follows from them; judged by the real rules."""
    engine = Engine(load_rules(RulesConfig()), run_id=made.RUN)
    from grpo_sentinel.history import HistoryReader, frames

    for step in range(1, 21):
        bad = step > 15
        good = {
            "reward.nonfinite": 0.0,
            "gradient.norm_preclip": 1.0,
            "gradient.nonfinite_tensors": 0.0,
            "reward.mean": 0.5,
        }
        ill = {"reward.nonfinite": 2.0, "policy.loss": math.nan, "reward.mean": math.nan}
        both = {"gradient.norm_preclip": math.nan, "gradient.nonfinite_tensors": 3.0} if bad else {}
        world.step({**good, **both}, rank_1=ill if bad else {})
    with HistoryReader(world.store.path) as reader:
        for frame in frames(reader.records(made.RUN), made.RUN):
            world.find(*engine.frame(frame))
    world.work()
    world.clock.advance(3.0)
    world.find()
    world.work()


def test_a_real_rules_incident_is_listed_shown_and_found_again_by_replay(
    world: World, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ruin(world)
    assert main(["incident", "list", "--config", config, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    name = one["incident"]["incident_id"]
    assert one["incident"]["onset_step"] == 16

    assert main(["incident", "show", name[:4], "--config", config]) == 0
    shown = capsys.readouterr().out
    assert "The first layer that was wrong is **reward**, at step 16, on rank 1." in shown

    assert main(["incident", "replay", name, "--config", config, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["not_again"] == []
    roots = [finding for finding in again["findings"] if not finding["root_id"]]
    assert {(root["layer"], root["onset_step"]) for root in roots} == {("reward", 16)}


def test_a_terminal_shows_the_report_without_the_signs_of_markdown(
    world: World, config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        world.step()
    world.find(made.finding("a_rule", message="loss_of [x] < 3 * y", remedies=("use *this* | that",)))
    world.work()
    (name,) = [path.name for path in (world.state / "incidents").iterdir() if path.is_dir()]
    assert main(["incident", "show", name, "--config", config]) == 0
    assert "loss\\_of \\[x\\] &lt; 3 \\* y" in capsys.readouterr().out, "Markdown for a pipe"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["incident", "show", name, "--config", config]) == 0
    shown = capsys.readouterr().out
    assert "loss_of [x] < 3 * y [a_rule]" in shown
    assert "try: use *this* | that" in shown
    assert not any(sign in shown for sign in ("**", "&lt;", "\\_", "\\["))


def test_replay_says_when_the_rules_find_it_no_more(
    world: World, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(5):
        world.step()
    world.find(made.finding("a_rule_that_is_gone"))
    world.work()
    assert main(["incident", "replay", world.folders()[0].name, "--config", config]) == 1
    assert "found then and not now: a_rule_that_is_gone" in capsys.readouterr().out


def test_export_writes_one_file_and_redacts_on_request(
    world: World, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.step()
    world.find(made.finding())
    world.work()
    target = tmp_path / "out.tar.gz"
    assert main(["incident", "export", str(world.folders()[0]), "--redact", "-o", str(target), "--config", config]) == 0
    assert capsys.readouterr().out.strip() == str(target)
    assert main(["incident", "show", str(target)]) == 0
    assert "node-1" in capsys.readouterr().out
    assert main(["incident", "export", str(target), "-o", str(tmp_path / "no" / "where.tar.gz")]) == 2


def test_what_is_not_there_or_damaged_is_said_in_a_sentence(
    world: World, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["incident", "list", "--config", config]) == 0
    assert "no incident in" in capsys.readouterr().out
    assert main(["incident", "show", "abc", "--config", config]) == 2
    assert "there is no incident abc" in capsys.readouterr().err
    world.find(made.finding())
    world.work()
    folder = world.folders()[0]
    (folder / "run.json").write_text("{")
    assert main(["incident", "show", folder.name, "--config", config]) == 1
    assert "run.json was changed" in capsys.readouterr().err
    assert main(["incident", "replay", folder.name, "--config", config]) == 2
    (folder / "run.json").write_text("[1]")
    assert main(["incident", "export", folder.name, "--redact", "-o", "x.tar.gz", "--config", config]) == 2
    assert f"{folder} is damaged" in capsys.readouterr().err
    (folder / "manifest.json").write_text("{")
    assert main(["incident", "show", str(folder), "--config", config]) == 2
