"""Every kind of source through the same rules: what fired then, in order, in constant memory, with exit codes for CI."""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import past_runs
import pytest

from grpo_sentinel.cli import main
from grpo_sentinel.cli.replaying import play, sources_of
from grpo_sentinel.config import HistoryConfig
from grpo_sentinel.history import HistoryStore
from grpo_sentinel.history.sources import Progress, SourceError, open_path
from grpo_sentinel.records import Frame, Kind, Mode, StepRecord
from grpo_sentinel.rules import load_rules
from grpo_sentinel.views import SinkBatch

RULES = load_rules()


def replayed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    code = main(["replay", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", past_runs.KINDS)
def test_a_nan_gradient_is_found_in_every_kind_of_source_at_its_step(kind: str, tmp_path: Path, capsys) -> None:
    path = past_runs.KINDS[kind](tmp_path / "bad", broken=True)
    code, body = replayed(capsys, str(path))
    (run,) = body["runs"]
    assert code == 1
    assert run["kind"] == kind.split()[0]
    assert (run["frames"], run["first_step"], run["last_step"]) == (past_runs.STEPS, 1, past_runs.STEPS)
    fired = {finding["rule"]: finding for finding in run["findings"] if finding["severity"] != "note"}
    expected = "loss_nonfinite" if "nemo" in kind else "grad_nonfinite"
    assert list(fired) == [expected]
    assert fired[expected]["onset_step"] == past_runs.BAD


@pytest.mark.parametrize("kind", past_runs.KINDS)
def test_a_healthy_run_of_every_kind_ends_with_exit_code_0(kind: str, tmp_path: Path, capsys) -> None:
    path = past_runs.KINDS[kind](tmp_path / "good", broken=False)
    code, body = replayed(capsys, str(path))
    assert code == 0
    assert body["runs"][0]["counts"]["warning"] == body["runs"][0]["counts"]["critical"] == 0


@pytest.mark.parametrize("kind", ["trainer_state", "csv", "jsonl", "text", "history"])
def test_a_source_is_read_from_standard_input_too(kind: str, tmp_path: Path) -> None:
    path = past_runs.KINDS[kind](tmp_path, broken=True)
    if kind == "history":  # its newest pages stand in a second file until a reader has closed it
        sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)")
    argv = [sys.executable, "-m", "grpo_sentinel.cli", "replay", "--json", "-"]
    done = subprocess.run(argv, stdin=path.open("rb"), capture_output=True, text=True, timeout=60, check=False)
    (run,) = json.loads(done.stdout)["runs"]
    assert (done.returncode, run["source"], run["kind"]) == (1, "standard input", kind.split()[0])
    assert run["frames"] == past_runs.STEPS


def test_the_rank_and_parameter_that_an_event_names_come_out_of_the_history(tmp_path: Path, capsys) -> None:
    _, body = replayed(capsys, str(past_runs.history(tmp_path, broken=True)))
    finding = next(one for one in body["runs"][0]["findings"] if one["rule"] == "grad_nonfinite")
    assert finding["ranks"] == [1]
    assert "layer.weight" in finding["subject"]


def test_fail_on_says_from_which_severity_the_exit_code_is_1(tmp_path: Path, capsys) -> None:
    path = str(past_runs.jsonl(tmp_path, broken=True))  # one warning, no critical finding
    assert main(["replay", path, "--fail-on", "critical"]) == 0
    assert main(["replay", path, "--fail-on", "warning"]) == 1
    assert "grad_nonfinite" in capsys.readouterr().out


def test_user_rules_and_profiles_apply(tmp_path: Path, capsys) -> None:
    path = str(past_runs.jsonl(tmp_path, broken=False))
    rule = tmp_path / "mine.yaml"
    rule.write_text(
        "rules:\n  - {name: mine, layer: reward, severity: critical, detect: {kind: bound, signal: reward.mean, max: 0.1},\n"
        "     message: high, why: w, remedies: [r]}\n"
    )
    profile = tmp_path / "profile.yaml"
    profile.write_text("name: wide\nparameters: {mine: {max: 9.0}}\n")
    assert main(["replay", path, "--rules", str(rule)]) == 1
    assert main(["replay", path, "--rules", str(rule), "--profile", str(profile)]) == 0
    assert main(["replay", path, "--profile", "no_such_profile"]) == 2
    assert "no profile 'no_such_profile'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["missing.log", "binary.dat", "empty.jsonl", "words.txt"])
def test_what_cannot_be_replayed_is_said_in_one_sentence(name: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / name
    if name == "binary.dat":
        path.write_bytes(b"\x00\x01\x02" * 100)
    elif name != "missing.log":
        path.write_text("" if name == "empty.jsonl" else "hello\nworld\n")
    code = main(["replay", str(path)])
    error = capsys.readouterr().err
    assert code == 2
    assert name in error
    assert error.count("\n") == 1


def test_a_directory_gives_each_run_in_it_apart(tmp_path: Path) -> None:
    past_runs.event_file(tmp_path / "logs" / "one", broken=True)
    past_runs.event_file(tmp_path / "logs" / "two", broken=False)
    found = sources_of([str(tmp_path / "logs")])
    assert [source.run_id for source in found] == ["one", "two"]
    assert [bool(play(source, RULES).worst() or 0) for source in found] == [True, False]


def test_a_history_gives_the_newest_run_a_named_one_or_all(tmp_path: Path) -> None:
    path = past_runs.history(tmp_path, broken=False)
    assert [source.run_id for source in open_path(path)] == ["demo"]
    assert [source.run_id for source in open_path(path, "all")] == ["demo"]
    with pytest.raises(SourceError, match="holds no run other"):
        open_path(path, "other")


def test_events_and_readings_come_in_the_order_of_time(tmp_path: Path) -> None:
    (source,) = open_path(past_runs.history(tmp_path, broken=True))
    kinds = [type(item).__name__ for item in source.items(Progress())]
    assert kinds.count("Sample") == kinds.count("Frame") == past_runs.STEPS
    event = kinds.index("EventRecord")
    assert kinds[:event].count("Frame") == past_runs.BAD - 1


def test_evaluation_is_kept_apart_from_training(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text('{"log_history": [{"step": 1, "loss": 0.1}, {"step": 1, "eval_loss": 0.2, "eval_reward": 0.1}]}')
    (source,) = open_path(path)
    assert [item.mode for item in source.items(Progress())] == [Mode.TRAIN, Mode.EVALUATION]


def test_the_ranks_of_a_table_become_one_frame(tmp_path: Path) -> None:
    path = tmp_path / "ranks.csv"
    path.write_text("step,rank,grad_norm\n1,0,0.5\n1,1,0.5\n2,0,0.5\n2,1,0.6\n")
    (source,) = open_path(path)
    frames = [item for item in source.items(Progress()) if isinstance(item, Frame)]
    assert [sorted(frame.ranks) for frame in frames] == [[0, 1], [0, 1]]


def test_a_rounded_learning_rate_and_a_nan_of_kl_are_no_findings(tmp_path: Path, capsys) -> None:
    path = tmp_path / "verl.log"
    path.write_text(
        "\n".join(
            f"step:{step} - actor/lr:0.000 - critic/kl:nan - actor/grad_norm:0.{40 + step % 7} - critic/score/mean:0.{50 + step % 9}"
            for step in range(1, 60)
        )
    )
    assert main(["replay", str(path)]) == 0
    capsys.readouterr()


def test_a_reward_that_is_none_in_a_log_is_found(tmp_path: Path, capsys) -> None:
    path = tmp_path / "run.log"
    lines = [
        f"{{'loss': 0.0, 'grad_norm': 0.{4 + n % 3}, 'reward': 0.5, 'rewards/acc/mean': 0.{5 + n % 3}}}"
        for n in range(9)
    ]
    lines[5] = "{'loss': 0.0, 'grad_norm': 0.4, 'reward': nan, 'rewards/acc/mean': None}"
    path.write_text("\n".join(lines))
    code, body = replayed(capsys, str(path))
    assert code == 1
    assert {"reward_nonfinite", "reward_func_nonfinite"} <= {one["rule"] for one in body["runs"][0]["findings"]}


def test_a_function_that_scores_one_task_of_several_is_no_fault_until_it_scores_nothing_at_all(
    tmp_path: Path, capsys
) -> None:
    def log(name: str, absent: Callable[[int], bool]) -> str:
        rows = [
            {"step": step, "reward": 0.5 + 0.01 * (step % 7), "rewards/maths/mean": 0.4 + 0.01 * (step % 5),
             "rewards/code/mean": float("nan") if absent(step) else 0.6 + 0.01 * (step % 3)}
            for step in range(1, 61)
        ]  # fmt: skip
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    assert main(["replay", log("two-tasks", lambda step: step % 3 == 0)]) == 0, capsys.readouterr().out
    capsys.readouterr()
    assert main(["replay", log("dead", lambda step: step > 20)]) == 1
    assert "reward_func_nonfinite" in capsys.readouterr().out


def test_a_finding_that_is_over_says_when_it_was_told_and_not_when_it_ended(tmp_path: Path, capsys) -> None:
    path = tmp_path / "run.jsonl"
    rates = [1e-6] * 9 + [0.0] * 9 + [1e-6] * 30
    path.write_text("".join(json.dumps({"step": n, "lr": rate}) + "\n" for n, rate in enumerate(rates, 1)))
    _, body = replayed(capsys, str(path))
    (found,) = [one for one in body["runs"][0]["findings"] if one["rule"] == "lr_zero"]
    assert (found["state"], found["onset_step"], found["step"]) == ("resolved", 10, 14)


def test_an_exception_in_a_text_log_is_an_event(tmp_path: Path, capsys) -> None:
    path = past_runs.text(tmp_path, broken=False)
    path.write_text(path.read_text() + "\n[rank1]: ValueError: reward is broken\n")
    code, body = replayed(capsys, str(path))
    assert code == 1
    (finding,) = [one for one in body["runs"][0]["findings"] if one["rule"] == "trainer_exception"]
    assert (finding["ranks"], finding["step"]) == ([1], past_runs.STEPS)


@pytest.mark.parametrize("kind", ["jsonl", "text", "csv"])
def test_packed_files_and_torn_archives_are_read(kind: str, tmp_path: Path) -> None:
    path = past_runs.KINDS[kind](tmp_path, broken=False)
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    (source,) = open_path(packed)
    assert len(list(source.items(Progress()))) == past_runs.STEPS
    packed.write_bytes(packed.read_bytes()[:-60])
    (source,) = open_path(packed)
    progress = Progress()
    assert 0 < len(list(source.items(progress))) < past_runs.STEPS
    assert progress.notes


def test_a_trainer_state_that_is_cut_off_gives_what_stands_before(tmp_path: Path) -> None:
    path = past_runs.trainer_state(tmp_path, broken=False)
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    (source,) = open_path(path)
    progress = Progress()
    assert 5 < len(list(source.items(progress))) < past_runs.STEPS
    assert "cut off" in progress.notes[0]


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    for kind in past_runs.KINDS:
        (source,) = open_path(past_runs.KINDS[kind](tmp_path / kind, broken=False))
        progress = Progress()
        for _ in source.items(progress):
            assert 0 <= progress.share <= 1
        assert progress.share == 1.0, kind


def test_replay_needs_no_more_memory_for_a_longer_run(tmp_path: Path) -> None:
    def peak(steps: int) -> int:
        path = tmp_path / f"{steps}.jsonl"
        with path.open("w") as file:
            for step in range(1, steps + 1):
                file.write(
                    json.dumps({"step": step, "grad_norm": 0.5 + step % 7 / 100, "reward": step % 11 / 10}) + "\n"
                )
        (source,) = open_path(path)
        tracemalloc.start()
        play(source, RULES)
        high = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return high

    short = peak(500)
    assert peak(5000) < 1.3 * short + 200_000


def test_a_replay_of_the_same_source_gives_the_same_findings(tmp_path: Path) -> None:
    (source,) = open_path(past_runs.history(tmp_path, broken=True))
    first, second = play(source, RULES), play(source, RULES)
    assert list(first.findings.values()) == list(second.findings.values())


def test_a_log_of_the_whole_job_names_no_rank_and_claims_no_skipped_update(tmp_path: Path, capsys) -> None:
    _, body = replayed(capsys, str(past_runs.jsonl(tmp_path, broken=True)))
    finding = next(one for one in body["runs"][0]["findings"] if one["rule"] == "grad_nonfinite")
    assert finding["ranks"] == []
    assert "rank not known" in finding["message"]
    assert "skipped" not in finding["message"]


def test_the_walk_backwards_says_what_a_log_cannot_show(tmp_path: Path, capsys) -> None:
    path = str(past_runs.jsonl(tmp_path, broken=True))
    assert main(["replay", path, "--walk"]) == 1
    text = capsys.readouterr().out
    assert "walk backwards: wrong first: gradient, since step" in text
    assert "device: not seen" in text
    _, body = replayed(capsys, path)
    layers = {layer["layer"]: layer for layer in body["runs"][0]["walk"]["layers"]}
    assert layers["gradient"]["state"] == "wrong"
    assert layers["time"]["not_seen"]["rank_dead"] == "no heartbeat so far"


def test_a_history_of_several_runs_says_that_there_are_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = past_runs.history(tmp_path, broken=False)
    main(["replay", str(path)])
    assert "other run" not in capsys.readouterr().err
    store = HistoryStore(path, HistoryConfig(retention_days=36500))
    for name in ("demo-2", "demo-3"):
        record = StepRecord(
            run_id=name, rank=0, sequence=1, step=1, kind=Kind.STEP, mode=Mode.TRAIN, micro_batch=0, generation=0,
            monotonic_ns=1, wall_ns=past_runs.START_NS, values={"reward.mean": 0.5},
        )  # fmt: skip
        store.write(SinkBatch(run_id=name, node="n", wall_ns=past_runs.START_NS, records=(record,)))
    store.close()
    main(["replay", str(tmp_path)])
    told = capsys.readouterr()
    assert "2 other runs are in this history" in told.err
    assert told.err.count("--run-id NAME or all") == 1
    for chosen in ("all", "demo-2"):
        main(["replay", str(tmp_path), "--run-id", chosen])
        assert "other run" not in capsys.readouterr().err
