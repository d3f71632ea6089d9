"""Readers of foreign logs: every known format, and nothing that makes them crash, hang or grow."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_sentinel.diagnosis.reading import read_into
from grpo_sentinel.diagnosis.redact import redact
from grpo_sentinel.diagnosis.triage import diagnose, judge
from grpo_sentinel.diagnosis.view import MAX_HITS, MAX_ROWS, LogView
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.history.logs.formats import Row, read_rows
from grpo_sentinel.history.logs.lines import MAX_LINE, Line, expand, read_lines


def rows(*texts: str) -> list[Row]:
    return list(read_rows(Line("log", number, text) for number, text in enumerate(texts, 1)))


CASES = [
    ("trl", "{'loss': 0.0, 'grad_norm': nan, 'reward': -2.0, 'rewards/f/mean': None}", None,
     {"policy.loss": 0.0, "gradient.norm_preclip": math.nan, "reward.mean": -2.0, "reward.func_mean[f]": math.nan}),
    ("trl", "{'loss': '-8.196e-08', 'grad_norm': '6.193', 'kl': '0.1'}", None,
     {"policy.loss": -8.196e-08, "gradient.norm_preclip": 6.193, "policy.kl_k3_nats": 0.1}),
    ("swift", "{'loss': 0.1, 'reward': 1.0, 'global_step/max_steps': '3/9', 'memory(GiB)': 146.13}", 3,
     {"policy.loss": 0.1, "reward.mean": 1.0}),
    ("json", '{"current_steps": 10, "total_steps": 1287, "loss": 0.5, "reward": 1.5}', 10,
     {"policy.loss": 0.5, "reward.mean": 1.5}),
    ("verl", "(main_task pid=1) step:92 - actor/pg_loss:0.113 - actor/grad_norm:2.113 - critic/score/mean:np.float64(0.5)",
     92, {"policy.pg_loss": 0.113, "gradient.norm_preclip": 2.113, "reward.mean": 0.5}),
    ("verl", "step:3 - actor/entropy:nan - off_policy/min:np.int64(0)(TaskRunnerV1 pid=1) INFO:2026", 3,
     {"policy.entropy_nats": math.nan}),
    ("openrlhf", "✨ Global step 12: {'policy_loss': 0.024, 'kl': 0.01, 'reward': 0.5}", 12,
     {"policy.loss": 0.024, "policy.kl_k3_nats": 0.01, "reward.mean": 0.5}),
    ("slime", "step 1: {'train/loss': 0.1022, 'train/grad_norm': 2955012562.8, 'train/step': 1}", 1,
     {"policy.loss": 0.1022, "gradient.norm_preclip": 2955012562.8}),
    ("megatron", " iteration 3383/ 8000 | learning rate: 6.680E-06 | lm loss: 7.334521E-01 | grad norm: nan |", 3383,
     {"optimizer.learning_rate": 6.68e-06, "policy.loss": 0.7334521, "gradient.norm_preclip": math.nan}),
    ("deepspeed-chat", "epoch: 0|step: 3183|ppo_ep: 1|act_loss: 30.921875|cri_loss: 30.5|unsuper_loss: 0.0", 3183,
     {"policy.loss": 30.921875}),
    ("plain", "step 10/611  loss=12.1181  lr=1.97e-04", 10, {"policy.loss": 12.1181, "optimizer.learning_rate": 1.97e-4}),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "step", "signals"), CASES)
def test_a_row_of_each_format_is_read(form: str, text: str, step: int | None, signals: dict[str, float]) -> None:
    (row,) = rows(text)
    assert (row.format, row.step) == (form, step)
    got = row.signals()
    for name, value in signals.items():
        assert got[name] == value or (math.isnan(value) and math.isnan(got[name]))


def test_a_progress_bar_gives_the_step_but_not_one_with_a_caption() -> None:
    bar = "  2%|▏         | 10/405 [03:44<2:26:29, 22.25s/it]"
    caption = "Loading weights: 100%|██████████| 46/46 [00:00<00:00, 15541.97it/s]"
    metrics = "{'loss': 0.1, 'grad_norm': 1.0, 'reward': 0.5}"
    assert [row.step for row in rows(bar, metrics)] == [10]
    assert [row.step for row in rows(caption, metrics)] == [None]


def test_a_nemo_block_is_joined_to_one_row() -> None:
    found = rows(
        "===== Step 7/100 =====", "  • Loss: 0.5", "  • Avg Reward: 0.25", "===== Step 8/100 =====", "  • Loss: 0.4"
    )
    assert [(row.step, row.signals()["policy.loss"]) for row in found] == [(7, 0.5), (8, 0.4)]


def test_a_dictionary_printed_over_several_lines_is_one_row_and_a_torn_one_none() -> None:
    found = rows(
        "{'loss': 0.5,",
        " 'grad_norm': nan,",
        " 'reward': 0.25}",
        "{'loss': 0.4, 'grad_norm': 0.1",
        "[rank1]: hello",
        "{'loss': 0.3, 'kl': 0.1}",
    )
    assert [row.raw.get("loss") for row in found] == [0.5, 0.3]
    assert found[0].raw["reward"] == 0.25


def test_trainer_state_keeps_exact_steps_and_nan(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text('{"max_steps": 9, "log_history": [{"step": 5, "loss": NaN, "reward": 1.0}]}')
    view = LogView()
    assert read_into(view, str(path)) == []
    (row,) = view.rows
    assert row.step == 5
    assert math.isnan(row.signals()["policy.loss"])


def test_gzip_carriage_returns_and_colours_are_read_as_plain_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.log.gz"
    path.write_bytes(gzip.compress(b"a\x1b[31mred\x1b[0m\r\rb\nlast"))
    assert [line.text for line in read_lines(path)] == ["ared", "b", "last"]


def test_a_torn_archive_gives_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "torn.log.gz"
    path.write_bytes(gzip.compress(b"\n".join(b"line %d" % i for i in range(5000)))[:-200])
    assert sum(1 for _ in read_lines(path)) > 0


def test_a_missing_log_and_an_empty_directory_are_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SentinelError, match="no such log"):
        expand([str(tmp_path / "gone.log")])
    with pytest.raises(SentinelError, match="no log in the directory"):
        expand([str(tmp_path)])


def test_memory_stays_bounded_however_long_the_log() -> None:
    view = LogView()
    for number in range(4 * MAX_ROWS):
        view.feed(Line("log", number, f"step {number}: {{'train/loss': 0.1, 'train/grad_norm': 1.0}}"))
        view.feed(Line("log", number, "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32"))
    assert len(view.rows) <= MAX_ROWS
    assert len(view.hits["overflow"]) <= MAX_HITS
    assert view.hit_counts["overflow"] == 4 * MAX_ROWS
    assert view.rows_seen == 4 * MAX_ROWS


def test_the_first_bad_step_of_a_long_log_is_kept_however_much_is_forgotten() -> None:
    view = LogView()
    for number in range(1, 5 * MAX_ROWS):
        grad = "nan" if number >= 2 * MAX_ROWS + 1 else "1.0"
        view.feed(Line("log", number, f"step {number}: {{'train/loss': 0.1, 'train/grad_norm': {grad}}}"))
    assert judge(view).verdict.step == 2 * MAX_ROWS + 1


def test_one_endless_line_costs_a_bounded_piece(tmp_path: Path) -> None:
    path = tmp_path / "binary.log"
    path.write_bytes(b"x" * (3 * MAX_LINE))
    assert max(len(line.text) for line in read_lines(path)) <= MAX_LINE


def test_the_search_for_a_loss_scale_at_the_start_is_normal() -> None:
    text = "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}"
    start = [text.format(2**n, 2 ** (n - 1)) for n in range(32, 26, -1)]
    low = [text.format(2**n, 2 ** (n - 1)) for n in range(6, 1, -1)]
    assert diagnose(Line("log", i, t) for i, t in enumerate(start)).verdict.layer == "undetermined"  # no metrics at all
    assert diagnose(Line("log", i, t) for i, t in enumerate(low)).verdict.layer == "gradient"


def test_a_nan_in_kl_beside_finite_gradients_is_a_note_not_a_fault() -> None:
    healthy = [f"{{'loss': -0.0, 'grad_norm': {0.05 + n / 100}, 'reward': 1.5, 'kl': 0.0007}}" for n in range(8)]
    healthy[3] = "{'loss': -0.0, 'grad_norm': 0.0587, 'reward': 1.4, 'kl': nan}"
    found = diagnose(Line("log", i, t) for i, t in enumerate(healthy))
    assert found.verdict.layer == "none"
    assert any("kl" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("Authorization: Bearer abc.def.ghi", "abc.def"),
        ("https://user:pass@example.org/x", "pass"),
        ("token: hf_abcdefghijklmnopqrstuvwxyz", "hf_abc"),
        ("File /home/somebody/project/train.py", "somebody"),
        ("connect to 10.1.2.3:29500", "10.1.2.3"),
        ("connect to fe80::1ff:fe23:4567:890a port 1", "fe23"),
        ("train.py --hub-token abcdefgh --lr 1", "abcdefgh"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.x-y_z", "eyJzdWIi"),
        ("File C:\\Users\\somebody\\train.py", "somebody"),
        ("File ~/secret_project/train.py", "secret_project"),
        ("File /home/somebody/My Project/train.py", "My Project"),
        ("File \\\\server\\share\\train.py", "share"),
        ("connect to 2001:db8:85a3::8a2e:370:7334", "8a2e"),
        ("node gpu-17.cluster.corp.internal died", "gpu-17"),
        ("-----BEGIN RSA PRIVATE KEY-----MIIEow", "MIIEow"),
        ('export MY_TOKEN="two words"', "words"),
    ],
)
def test_redaction_takes_secrets_out(text: str, secret: str) -> None:
    assert secret not in redact(text)


@pytest.mark.parametrize(
    "text",
    ["KeyError: 'answer'", "num_tokens: 12288.0", "torch::Tensor c10::Error", "step:3 - critic/score/mean:0.1", "10:11:12 done 4/5", "pad_token_id 3",
     "[rank1]: RuntimeError: The size of tensor a (16) must match"],
)  # fmt: skip
def test_redaction_leaves_what_a_reader_needs(text: str) -> None:
    assert redact(text) == text


@given(st.lists(st.text(max_size=300), max_size=40))
@settings(max_examples=60, deadline=None)
def test_no_text_makes_the_readers_fail(texts: list[str]) -> None:
    view = LogView()
    for number, text in enumerate(texts, 1):
        view.feed(Line("log", number, text))
    view.close()
    assert judge(view).as_json()["schema"] == "grpo-sentinel.diagnosis/1"


_PIECE = st.sampled_from(
    ["{'loss': ", "nan", "1e999", "'grad_norm': ", "step:", " - ", "actor/lr:", "None", "}", "OVERFLOW! ", "loss scale: ", "9",
     "Global step ", "iteration ", "|", " 10/20 [00:01<00:02", "it]", "Traceback", "CUDA out of memory", "\r", "'kl': -3.0,"]
)  # fmt: skip


@given(st.lists(st.lists(_PIECE, max_size=12).map("".join), max_size=30))
@settings(max_examples=150, deadline=None)
def test_no_mixture_of_real_pieces_makes_the_readers_fail(texts: list[str]) -> None:
    assert diagnose(Line("log", number, text) for number, text in enumerate(texts, 1)).verdict.layer
