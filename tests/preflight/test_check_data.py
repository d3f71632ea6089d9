"""Every fault of a sample is found where it is, counted once, and shown; good samples of every shape pass in silence."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows_made import BROKEN, chat, counts, good, tokenizer, write

from grpo_sentinel.cli import main
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data import DataOptions, check_data
from grpo_sentinel.preflight.data_checks import Limits
from grpo_sentinel.preflight.data_faults import KINDS
from grpo_sentinel.preflight.data_shapes import Fields
from grpo_sentinel.preflight.data_sources import read_rows
from grpo_sentinel.preflight.report import excerpt

SHAPES: dict[str, dict[str, Any]] = {
    "TRL, conversational": {"prompt": chat("{n}?"), "completion": [{"role": "assistant", "content": "{n}"}]},
    "TRL, plain": {"prompt": "{n}?", "solution": "{n}"},
    "verl, conversational": {
        "data_source": "gsm8k", "prompt": chat("{n}?"), "reward_model": {"style": "rule", "ground_truth": "{n}"},
    },
    "OpenRLHF, plain": {"input": "{n}?", "label": "{n}"},
    "preference, plain": {"prompt": "{n}?", "chosen": "{n}", "rejected": "no"},
    "conversation": {"messages": [*chat("{n}?"), {"role": "assistant", "content": "{n}"}]},
    "groups, plain": {"prompt": "{n}?", "responses": ["{n}", "no"], "rewards": [1.0, 0.0]},
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_good_rows_of_every_shape_are_recognised_and_pass_in_silence(shape: str, tmp_path: Path) -> None:
    rows = [json.loads(json.dumps(SHAPES[shape]).replace("{n}", str(n))) for n in range(50)]
    report = check_data([write(tmp_path / "a.jsonl", rows)])
    assert report.faults == ()
    assert f"shape {shape}:" in report.looked_at[1]
    assert report.facts["rows"] == 50


@pytest.mark.parametrize("code", BROKEN)
def test_one_bad_row_among_good_ones_is_found_and_its_line_is_named(code: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*good(), BROKEN[code]])
    report = check_data([path], DataOptions(limits=Limits(reward_low=0, reward_high=1, max_length=300)))
    assert counts(report) == {code: 1}
    assert report.faults[0].examples[0].startswith(f"{path}:41")
    assert report.faults[0].remedy == KINDS[code].remedy


@pytest.mark.parametrize("text", ["a\x00b", "lost \ufffd text", "half \ud83d", "bell \x07", "c1 \x9d", "no \uffff"])
def test_every_poisonous_character_is_found_in_prompt_and_response(text: str, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "response": "fine"} for n in range(20)] + [{"prompt": text, "response": text + "!"}]
    report = check_data([write(tmp_path / "a.jsonl", rows)])
    assert counts(report) == {"poison": 2}
    assert all(one.isprintable() for one in report.faults[0].examples)


@pytest.mark.parametrize(
    "text", ["tab\tnew\nline\r", "emoji 😀 and 中文，完", "a\u00a0b ภาษา\u200bไทย", "x < y [1] <b>"]
)
def test_ordinary_text_in_any_script_is_not_poison(text: str, tmp_path: Path) -> None:
    assert (
        check_data([write(tmp_path / "a.jsonl", [{"prompt": f"{text}{n}", "answer": "1"} for n in range(5)])]).faults
        == ()
    )


def test_an_empty_group_and_a_missing_reward_in_a_group_are_faults(tmp_path: Path) -> None:
    rows: list[Any] = [{"prompt": f"{n}?", "responses": ["a", "b"], "rewards": [0.0, 1.0]} for n in range(20)]
    rows += [
        {"prompt": "x", "responses": [], "rewards": []},
        {"prompt": "y", "responses": ["a", "b"], "rewards": [1.0]},
    ]
    assert counts(check_data([write(tmp_path / "a.jsonl", rows)])) == {"empty-group": 1, "group-mismatch": 1}


def test_equal_rewards_and_an_outlier_among_many_are_told(tmp_path: Path) -> None:
    flat = [{"prompt": f"{n}", "reward": 1} for n in range(40)]
    assert counts(check_data([write(tmp_path / "a.jsonl", flat)])) == {"constant-reward": 1}
    wild = [{"prompt": f"{n}", "reward": n % 7} for n in range(400)] + [{"prompt": "x", "reward": 1e6}]
    assert counts(check_data([write(tmp_path / "b.jsonl", wild)])) == {"reward-outlier": 1}


def test_the_same_data_reads_the_same_from_every_format_and_from_stdin(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    rows = [{"prompt": f"what is {n}, then?", "answer": str(n), "reward": n / 40} for n in range(40)]
    rows[5] |= {"prompt": rows[4]["prompt"], "answer": rows[4]["answer"]}
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "a.jsonl.bz2").write_bytes(bz2.compress(lines))
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    files = sorted(tmp_path.glob("a.*"))
    assert len(files) == 5
    for path in files:
        report = check_data([str(path)])
        assert (report.facts["rows"], counts(report)) == (40, {"duplicate": 1}), path.name
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(lines))))
    assert main(["check", "data", "-", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["facts"]["faults"] == {"duplicate": 1}


@pytest.mark.torch
def test_parquet_of_verl_and_a_folder_of_datasets_are_read(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"data_source": "x", "prompt": chat(f"{n}?"), "reward_model": {"style": "rule", "ground_truth": str(n)}}
            for n in range(700)]  # fmt: skip
    rows[600]["reward_model"]["ground_truth"] = ""  # type: ignore[index]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "train.parquet")
    report = check_data([str(tmp_path / "*.parquet")])
    assert counts(report) == {"empty-answer": 1}
    assert report.faults[0].examples[0].startswith(f"{tmp_path}/train.parquet:601")
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "folder"))
    assert counts(check_data([str(tmp_path / "folder")])) == {"empty-answer": 1}
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "train.parquet").read_bytes()[:-40])
    assert counts(check_data([str(tmp_path / "cut.parquet")])) == {"unreadable": 1}


@pytest.mark.torch
def test_zstd_is_read_from_files_and_from_stdin(tmp_path: Path, monkeypatch: Any) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    lines = "".join(json.dumps(row) + "\n" for row in [*good(), good()[3]]).encode()
    with pyarrow.CompressedOutputStream(str(tmp_path / "a.jsonl.zst"), "zstd") as file:
        file.write(lines)
    packed = (tmp_path / "a.jsonl.zst").read_bytes()
    assert packed[:4] == b"\x28\xb5\x2f\xfd"
    assert counts(check_data([str(tmp_path / "a.jsonl.zst")])) == {"duplicate": 1}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(packed)))
    assert counts(check_data(["-"])) == {"duplicate": 1}
    (tmp_path / "cut.jsonl.zst").write_bytes(packed[: len(packed) // 2])
    assert counts(check_data([str(tmp_path / "cut.jsonl.zst")]))["unreadable"] == 1


def test_zstd_without_anything_that_reads_it_is_one_sentence(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    for name in ("compression.zstd", "zstandard", "pyarrow"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    (tmp_path / "a.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    assert main(["check", "data", str(tmp_path / "a.jsonl.zst")]) == 2
    assert capsys.readouterr().err.strip().endswith("pip install zstandard")


def test_an_answer_of_another_kind_than_most_is_told_and_kept(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"what is {n}?", "answer": str(n)} for n in range(20)]
    rows[7]["answer"] = 7
    rows[8]["answer"] = ["8"]
    clean = tmp_path / "clean.jsonl"
    report = check_data([write(tmp_path / "a.jsonl", rows)], DataOptions(write_clean=clean))
    (fault,) = report.faults
    assert (fault.code, fault.count) == ("odd-answer", 2)
    assert "number among text 1" in fault.message
    assert len(clean.read_text().splitlines()) == 20
    plain = [{"prompt": f"what is {n}?", "answer": n if n % 2 else n / 2} for n in range(20)]
    assert check_data([write(tmp_path / "b.jsonl", plain)]).faults == ()


def test_a_frame_of_the_template_gives_the_templates_own_text_or_is_given_up() -> None:
    from grpo_sentinel.preflight.data_frames import Frames

    def plain(messages: list[dict[str, str]]) -> str:
        return "".join(f"[{m['role']}]{m['content'].strip()}[end]\n" for m in messages) + "[assistant]"

    def moody(messages: list[dict[str, str]]) -> str:
        return plain(messages) + ("!" if "why" in messages[-1]["content"] else "")

    def chats(number: int) -> list[tuple[str, str]]:
        asked = ["what?", " what? ", "", "a<b>c", "why?", "\u3000什么", "x" * 300][number % 7]
        return [("system", "be careful"), ("user", asked)][number % 3 == 0 :]

    for render in (plain, moody):
        frames = Frames(render)
        for number in range(400):
            messages = chats(number)
            wanted = render([{"role": role, "content": text} for role, text in messages])
            assert frames.text(messages) == wanted


def test_a_line_that_is_too_long_is_a_fault_and_the_next_one_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    from grpo_sentinel.preflight import data_blocks, data_text

    for module in (data_blocks, data_text):
        monkeypatch.setattr(module, "MAX_ROW_BYTES", 5_000)
        monkeypatch.setattr(module, "BLOCK_BYTES", 700)
    lines = [json.dumps({"prompt": "x" * size, "answer": str(size)}) for size in (10, 12_000, 4_900, 60_000, 20)]
    report = check_data([write(tmp_path / "a.jsonl", lines)])
    assert (report.facts["rows"], counts(report)) == (5, {"unreadable": 2})
    assert [one.split(":")[1] for one in report.faults[0].examples] == ["2", "4"]


@pytest.mark.parametrize("packed", [gzip.compress, bz2.compress, lzma.compress])
def test_an_archive_with_a_damaged_middle_is_a_fault_and_no_traceback(tmp_path: Path, packed: Any) -> None:
    content = bytearray(packed("".join(json.dumps({"prompt": f"{n * 7919}"}) + "\n" for n in range(20_000)).encode()))
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)  # the name does not say that it is compressed
    report = check_data([str(path)])
    assert "unreadable" in counts(report)
    assert int(report.facts["rows"]) >= 1  # type: ignore[call-overload]


def test_parquet_without_pyarrow_is_one_sentence(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    assert main(["check", "data", str(tmp_path / "a.parquet")]) == 2
    assert capsys.readouterr().err.strip().endswith("pip install pyarrow")


def test_prompts_of_the_evaluation_set_are_found_whatever_their_case_and_spaces(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", good())
    held = write(tmp_path / "eval.jsonl", [{"prompt": chat("what is  7 + 1?")}, {"prompt": chat("other")}])
    report = check_data([train], DataOptions(evaluation=(held,)))
    assert counts(report) == {"leakage": 1}
    assert report.faults[0].examples[0].startswith(f"{train}:8: ")


def test_the_clean_copy_and_its_list_of_dropped_rows_account_for_every_row(tmp_path: Path, capsys: Any) -> None:
    rows = [*good(), *BROKEN.values()]
    path = write(tmp_path / "a.jsonl", rows)
    out = tmp_path / "clean.jsonl"
    assert (
        main(["check", "data", path, "--reward-range", "0", "1", "--max-length", "300", "--write-clean", str(out)]) == 1
    )
    capsys.readouterr()
    kept = out.read_text().splitlines()
    dropped = [json.loads(line) for line in (tmp_path / "clean.jsonl.dropped.jsonl").read_text().splitlines()]
    assert kept == [json.dumps(row) for row in good()]
    assert {one["row"]: one["reasons"] for one in dropped} == {41 + n: [code] for n, code in enumerate(BROKEN)}
    assert check_data([str(out)]).faults == ()
    assert main(["check", "data", path, "--write-clean", path]) == 2
    assert Path(path).read_text().count("\n") == len(rows)


def test_a_clean_copy_of_a_check_that_fails_never_appears(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"nothing": 1}])
    with pytest.raises(SentinelError, match="--prompt"):
        check_data([path], DataOptions(write_clean=tmp_path / "c.jsonl"))
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["a.jsonl"]


def test_named_and_required_fields_win_over_those_that_are_guessed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"meta": {"q": f"{n}?"}, "prompt": ""} for n in range(9)] + [{"prompt": ""}])
    report = check_data([path], DataOptions(fields=Fields(prompt="meta.q")))
    assert counts(report) == {"missing-field": 1}
    assert (
        counts(check_data([path], DataOptions(fields=Fields(prompt="meta.q", required=("id",)))))["missing-field"] == 11
    )


def test_a_cut_archive_and_bytes_that_are_not_utf8_are_faults_and_the_rest_is_read(tmp_path: Path) -> None:
    lines = [json.dumps(row).encode() for row in good()]
    lines[9] = b'{"prompt": "\xff\xfe", "answer": "1", "reward": 1}'
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    report = check_data([str(tmp_path / "a.jsonl")])
    assert (report.facts["rows"], counts(report)) == (40, {"encoding": 1})
    whole = gzip.compress("".join(json.dumps({"prompt": f"{n * 7919}"}) + "\n" for n in range(3000)).encode())
    (tmp_path / "b.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    report = check_data([str(tmp_path / "b.jsonl.gz")])
    assert counts(report) == {"unreadable": 1}
    assert int(report.facts["rows"]) > 500  # type: ignore[call-overload]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400), name=st.sampled_from(["a.jsonl", "a.json", "a.csv", "a.jsonl.gz"]))
def test_no_bytes_make_a_reader_raise_or_run_on(tmp_path: Path, data: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert len(list(read_rows(str(path)))) <= len(data) + 1


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.dictionaries(st.sampled_from(["prompt", "answer", "reward", "completion"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content"]), inner, max_size=2),
    max_leaves=6)), min_size=1, max_size=5))  # fmt: skip
def test_no_shape_of_row_makes_the_check_crash(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        report = check_data([write(tmp_path / "a.jsonl", rows)])
    except SentinelError:
        return
    assert report.facts["rows"] == len(rows)
    json.dumps(report.facts, default=str)


def test_usage_errors_are_one_sentence_and_exit_code_2(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    for arguments in ([str(tmp_path / "none*.jsonl")], [str(tmp_path / "empty.jsonl")], [str(tmp_path)], ["-", "-"]):
        assert main(["check", "data", *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_json_report_has_the_documented_keys(tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path / "a.jsonl", good())
    assert main(["check", "data", path, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["version"], body["clean"]) == ("grpo-sentinel/data-check", 1, True)
    text = (Path(__file__).resolve().parents[2] / "docs" / "checks.md").read_text()
    for key in body:
        assert f"`{key}`" in text, key
    for code in KINDS:
        assert f"`{code}`" in text, code


def test_an_excerpt_has_at_most_80_printable_characters() -> None:
    assert len(excerpt("x" * 1000)) == 80
    assert excerpt("\x00" * 100).isprintable()
    assert len(excerpt("\x00" * 100)) <= 80


@pytest.mark.torch
def test_a_real_tokenizer_measures_length_template_faults_and_special_tokens(tmp_path: Path) -> None:
    tokenizer(tmp_path / "tok")
    rows = [{"prompt": chat(f"why {n}")} for n in range(20)]
    rows += [{"prompt": chat("why " * 60)}, {"prompt": [{"role": "tool", "content": "why"}]}]
    path = write(tmp_path / "a.jsonl", rows)
    report = check_data([path], DataOptions(tokenizer=tmp_path / "tok", limits=Limits(max_length=50)))
    assert counts(report) == {"too-long": 1, "template": 1}
    assert report.facts["length_unit"] == "tokens"
    assert any("padding token is the end token" in note for note in report.notes)
    plain = write(tmp_path / "b.jsonl", [{"prompt": f"why {n}"} for n in range(20)] + [{"prompt": "<bos> why"}])
    assert counts(check_data([plain], DataOptions(tokenizer=tmp_path / "tok"))) == {
        "doubled-bos": 1,
        "special-token": 1,
    }


@pytest.mark.parametrize(("name", "content", "code", "said"), [
    ("a.jsonl", "".join(json.dumps(row) + "\n" for row in good()).encode("utf-16"), "encoding", "UTF-16"),
    ("a.csv", "prompt,answer\nwho?,me\n".encode("utf-16"), "unreadable", "UTF-16"),
    ("a.jsonl", b"\x80\x04\x95\x00\x01{\n" * 500, "unreadable", "a binary file"),
    ("a.json", json.dumps({"data": good()}, indent=1).encode(), "unreadable", "an object over several lines"),
    ("a.csv", b"prompt;answer\nwho?;me\n" * 9, "unreadable", "separated by ';', not by ','"),
    ("a.tsv", b"prompt,answer\nwho?,me\n" * 9, "unreadable", "separated by ',', not by '\\t'"),
    ("a.csv", b"", "", ""), ("a.csv", b"\n\n", "", ""), ("a.csv", b"prompt,answer\n", "", ""),
])  # fmt: skip
def test_a_file_of_another_kind_is_told_once_and_not_line_by_line(
    name: str, content: bytes, code: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    if not code:
        with pytest.raises(SentinelError, match="not one row"):
            check_data([str(tmp_path / name)])
        return
    report = check_data([str(tmp_path / name)])
    assert counts(report) == {code: 1}
    assert said in report.faults[0].examples[0]


def test_a_named_pipe_is_read_as_a_file_is(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    content = "".join(json.dumps(row) + "\n" for row in [*good(), good()[3]])
    for jobs in (1, 2):
        writer = threading.Thread(target=path.write_text, args=(content,), daemon=True)
        writer.start()
        assert counts(check_data([str(path)], DataOptions(jobs=jobs))) == {"duplicate": 1}
        writer.join(timeout=30)


@pytest.mark.torch  # Parquet
@pytest.mark.parametrize("name", ["closed/a.jsonl", "a.jsonl", "a.parquet", "x" * 300])
def test_a_file_that_this_user_may_not_read_is_one_sentence(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "closed").mkdir(mode=0o700)
    for one in ("closed/a.jsonl", "a.jsonl", "a.parquet"):
        (tmp_path / one).write_bytes(b"{}")
        (tmp_path / one).chmod(0o600 if not os.getuid() else 0o000)
    code = (
        "import os, sys; import pyarrow.parquet; from grpo_sentinel.preflight.data import check_data;"
        "os.getuid() or os.setuid(65534)\n"
        "try: check_data([sys.argv[1]])\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code, name], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("SentinelError cannot read"), done.stdout + done.stderr


def test_html_and_signs_of_a_programme_are_no_special_tokens_of_a_model(tmp_path: Path) -> None:
    rows = [{"prompt": f"what does <s>old</s> x<y, a[{n}] <mask> <b>mean</b>?"} for n in range(20)]
    assert check_data([write(tmp_path / "a.jsonl", rows)]).faults == ()


def drawn(count: int, pool: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{n * n % pool} + 1 =", "answer": str(n * n % pool + 1)} for n in range(count)]


@pytest.mark.parametrize(("rows", "said"), [
    (drawn(500, 97), "drawn again and again from a pool of 49"),
    ([*({"prompt": f"{n}?"} for n in range(300)), {"prompt": "7?"}], "1 of 301 rows repeats an earlier one"),
])  # fmt: skip
def test_prompts_of_a_small_pool_and_a_rare_repetition_are_a_note_and_exit_code_0(
    rows: list[Any], said: str, tmp_path: Path, capsys: Any
) -> None:
    path = write(tmp_path / "a.jsonl", rows)
    for jobs in ("1", "2"):
        assert main(["check", "data", path, "--jobs", jobs, "--json"]) == 0
        body = json.loads(capsys.readouterr().out)
        (note,) = body["notes"]
        assert said in note
        assert f"(first {path}:" in note
        assert (body["clean"], body["facts"]["rows_with_faults"], body["facts"]["faults"]) == (True, 0, {})


def test_a_file_given_twice_over_and_more_repeats_than_allowed_are_a_fault(tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path / "a.jsonl", [*good(100), *good(100)])
    assert counts(check_data([path])) == {"duplicate": 100}
    assert main(["check", "data", path, "--repeats", "0.6"]) == 0
    once = write(tmp_path / "b.jsonl", [*good(300), good()[3]])
    assert counts(check_data([once], DataOptions(limits=Limits(repeats=0)))) == {"duplicate": 1}
    capsys.readouterr()
    for share, kept, said in (("0.6", 100, "the clean copy holds one of each"), ("1", 200, "")):
        assert main(["check", "data", path, "--repeats", share, "--write-clean", str(tmp_path / "c.jsonl")]) == 0
        assert said in capsys.readouterr().out
        assert len((tmp_path / "c.jsonl").read_text().splitlines()) == kept


def test_the_same_prompt_with_another_answer_is_told_also_among_many_repeats(tmp_path: Path) -> None:
    rows = drawn(500, 97)
    rows[400]["answer"] = "1000"
    rows[450]["answer"] = f" {rows[450]['answer']} "
    for jobs in (1, 2):
        report = check_data([write(tmp_path / "a.jsonl", rows)], DataOptions(jobs=jobs))
        assert counts(report) == {"conflicting-answer": 1}
        assert ":401: " in report.faults[0].examples[0]
        assert report.facts["rows_with_faults"] == 1


def test_questions_about_pictures_are_no_duplicates_of_one_another(tmp_path: Path) -> None:
    rows = [{"prompt": "Find x.", "images": [f"{n}.png"], "answer": str(n)} for n in range(40)]
    report = check_data([write(tmp_path / "a.jsonl", rows)])
    assert report.faults == ()
    assert any("images" in line for line in report.not_seen)


def test_a_good_row_is_kept_though_a_faulty_one_before_it_has_the_same_prompt(tmp_path: Path) -> None:
    rows = [{"prompt": "who?", "answer": ""}, {"prompt": "who?", "answer": "me"}, {"prompt": "who?", "answer": "me"}]
    report = check_data([write(tmp_path / "a.jsonl", rows)], DataOptions(write_clean=tmp_path / "c.jsonl"))
    assert counts(report) == {"empty-answer": 1, "duplicate": 1}
    assert (tmp_path / "c.jsonl").read_text() == json.dumps(rows[1]) + "\n"
