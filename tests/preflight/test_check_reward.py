"""A sane reward passes in silence; each way of being broken is named by its own code."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_sentinel.cli import main
from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.report import CheckReport
from grpo_sentinel.preflight.reward import RewardOptions, check_reward
from grpo_sentinel.preflight.reward_trial import ranks, spearman

REWARDS = """
import itertools, math, os, random, re, subprocess, sys, time, zlib
_count = itertools.count()

def _numbers(text):
    return re.findall(r"[0-9]+", text)[-1:]

def good(completions, answer, **kw):
    print("noise on stdout")
    return [float(_numbers(c) == [a]) for c, a in zip(completions, answer)]

async def awaited(completions, answer, **kw):
    return good(completions, answer)

def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(_numbers(solution_str) == [ground_truth])}

def single(prompt, completion, answer):
    return float(_numbers(completion) == [answer])

def nan(completions, answer, **kw):
    return [math.nan if c == "12" else g for c, g in zip(completions, good(completions, answer))]

def longer(completions, **kw):
    return [float(len(c)) for c in completions]

def constant(completions, **kw):
    return [0.5] * len(completions)

def rnd(prompt, completion):
    return random.random()

def stateful(completions, answer, **kw):
    return [g + (0.01 * next(_count) if g else 0) for g in good(completions, answer)]

def by_batch(completions, answer, **kw):
    return [g / len(completions) for g in good(completions, answer)]

def raising(completions, answer, **kw):
    return [1 / len(c) and g for c, g in zip(completions, good(completions, answer))]

def nan_for_empty(completions, answer, **kw):
    return [g if c.strip() else float("nan") for c, g in zip(completions, good(completions, answer))]

def text(completions, **kw):
    return ["high"] * len(completions)

def short(completions, **kw):
    return [1.0]

def empty_wins(completions, answer, **kw):
    return [2.0 if not c else g for c, g in zip(completions, good(completions, answer))]

def exact(completions, answer, **kw):
    return [float(c == a) for c, a in zip(completions, answer)]

def any_number(completions, **kw):
    return [float(bool(_numbers(c))) + len(set(c)) / 100 for c in completions]

def hangs(completions, **kw):
    time.sleep(60)

def slow(completions, answer, **kw):
    time.sleep(0.01 * len(completions))
    return good(completions, answer)

def none(completions, answer, **kw):
    return [None if a == "7" else g for a, g in zip(answer, good(completions, answer))]

def ticked(completions, answer, **kw):
    return [1.0 if c.endswith("✓") else g for c, g in zip(completions, good(completions, answer))]

def end_token(completions, answer, **kw):
    return [g + 0.2 * c.endswith("<|im_end|>") for c, g in zip(completions, good(completions, answer))]

def well(completions, answer, **kw):
    return [g + 0.5 * c.startswith("Well") for c, g in zip(completions, good(completions, answer))]

def judge(completions, answer, **kw):
    return [g + 0.04 * (zlib.crc32(c.encode()) % 997) / 997 for c, g in zip(completions, good(completions, answer))]

def paid_judge(completions, answer, **kw):
    return [g + 0.3 * c.endswith("✓") for c, g in zip(completions, judge(completions, answer))]

def stripped(completions, answer, **kw):
    return [float(c.strip().strip("!. ✓。") == a) for c, a in zip(completions, answer)]

def boxed(completions, answer, **kw):
    return [float(c.strip() == "\\\\boxed{" + a + "}") for c, a in zip(completions, answer)]

def whole(completions, completion_gold, **kw):
    return [float(c == a) for c, a in zip(completions, completion_gold)]

def cut(completions, answer, **kw):
    return [float(_numbers(c[:900]) == [a]) for c, a in zip(completions, answer)]

def always(completions, **kw):
    raise KeyError("solution")

def nothing(completions, **kw):
    return None

def table(completions, **kw):
    return {"rewards": [1.0] * len(completions)}

def number(completions, **kw):
    return 0.5

def words(completions, **kw):
    return ["0.5"] * len(completions)

def generated(completions, answer, **kw):
    yield from good(completions, answer)

def openrlhf(queries, prompts, labels):
    return {"rewards": [float(_numbers(q) == [a]) for q, a in zip(queries, labels)], "extra_logs": {}}

def loud(completions, answer, **kw):
    os.write(1, b"written\\n")
    print("said", file=sys.__stdout__)
    subprocess.run(["echo", "by a child"])
    return good(completions, answer)

def abstains(completions, **kw):
    return [None] * len(completions)

def by_tag(completions, **kw):
    return [float(bool(re.search("<answer>.*</answer>", c))) for c in completions]

PERTURBATIONS = {"shouted": lambda text: text + " 999"}
value = 3
"""


@pytest.fixture
def world(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "rewards.py").write_text(REWARDS)
    rows = [
        {"prompt": f"What is {n} + {n + 1}?", "answer": str(2 * n + 1), "data_source": "sums"} for n in range(2, 40)
    ]
    rows[4]["answer"] = "12"
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "rewards.py"), str(tmp_path / "a.jsonl")


def codes(report: CheckReport) -> set[str]:
    return {fault.code for fault in report.faults}


@pytest.mark.parametrize("name", ["good", "awaited", "verl", "single", "none", "generated", "openrlhf"])
def test_a_sane_reward_in_every_convention_passes_in_silence(world: tuple[str, str], name: str) -> None:
    report = check_reward(f"{world[0]}:{name}", [world[1]])
    assert report.faults == ()
    assert report.facts["scores"]["gold_mean"] == 1.0  # type: ignore[index]
    assert set(report.facts["canaries"]) >= {"empty", "repeated token", "copied prompt", "typo in the answer"}  # type: ignore[call-overload]
    assert set(report.facts["perturbations"]) == {"special tokens", "symbols", "paraphrase"}  # type: ignore[call-overload]
    assert not any("strict" in one for one in report.notes)
    assert any(line.startswith("memory over") for line in report.looked_at)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("nan", "not-finite"), ("longer", "length"), ("longer", "canary-wins"), ("longer", "length-coupling"),
        ("constant", "degenerate"), ("rnd", "nondeterministic"), ("stateful", "nondeterministic"),
        ("by_batch", "batch-size"), ("raising", "raises"), ("text", "not-a-number"), ("text", "no-score"),
        ("short", "wrong-length"), ("empty_wins", "canary-wins"), ("any_number", "gold-not-above-wrong"),
    ],
)  # fmt: skip
def test_each_broken_reward_is_named(world: tuple[str, str], name: str, code: str) -> None:
    assert code in codes(check_reward(f"{world[0]}:{name}", [world[1]]))


def notes(report: CheckReport) -> str:
    return " ".join(report.notes)


@pytest.mark.parametrize("name", ["exact", "stripped"])
def test_a_strict_grader_is_a_note_and_no_fault(world: tuple[str, str], name: str) -> None:
    report = check_reward(f"{world[0]}:{name}", [world[1]])
    assert report.faults == ()
    assert "strict" in notes(report)
    assert report.facts["perturbations"]["special tokens"]["fell"] == 10  # type: ignore[index]
    assert any("bare answers" in line for line in report.not_seen)


def test_a_grader_of_an_exact_form_is_strict_too(world: tuple[str, str]) -> None:
    report = check_reward(f"{world[0]}:boxed", [world[1]], RewardOptions(template=r"\boxed{{answer}}"))
    assert report.facts["scores"]["gold_mean"] == 1.0  # type: ignore[index]
    assert report.faults == ()
    assert "strict" in notes(report)


@pytest.mark.parametrize(("name", "subject", "example"), [
    ("ticked", "symbols", "✓"), ("paid_judge", "symbols", "✓"), ("end_token", "special tokens", "<|im_end|>"), ("well", "paraphrase", "Well"),
])  # fmt: skip
def test_an_edit_that_is_paid_is_a_fault(world: tuple[str, str], name: str, subject: str, example: str) -> None:
    report = check_reward(f"{world[0]}:{name}", [world[1]])
    won = next(one for one in report.faults if one.code == "perturbation-wins")
    assert won.subject == subject
    assert example in won.examples[0]


def test_a_judge_whose_scores_move_a_little_with_any_change_pays_for_none(world: tuple[str, str]) -> None:
    assert check_reward(f"{world[0]}:judge", [world[1]]).faults == ()


def test_a_reward_that_other_words_for_the_same_answer_flip_is_a_fault(world: tuple[str, str], tmp_path: Path) -> None:
    rows = [
        {"prompt": f"What is {n} + 0?", "completion": f"First we look at it, and therefore it is {n} for sure.", "answer": str(n),
         "completion_gold": f"First we look at it, and therefore it is {n} for sure."}
        for n in range(2, 40)
    ]  # fmt: skip
    path = tmp_path / "responses.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flipped = check_reward(f"{world[0]}:whole", [str(path)])
    assert {(one.code, one.subject) for one in flipped.faults} == {("not-robust", "paraphrase")}
    assert "strict" in notes(flipped)
    assert check_reward(f"{world[0]}:good", [str(path)]).faults == ()


def test_what_is_cut_at_a_limit_is_a_fault_and_not_strictness(world: tuple[str, str]) -> None:
    report = check_reward(f"{world[0]}:cut", [world[1]])
    assert {(one.code, one.subject) for one in report.faults} == {("not-robust", "lengths")}


def test_a_reward_of_the_form_alone_is_told_as_that(world: tuple[str, str]) -> None:
    report = check_reward(f"{world[0]}:by_tag", [world[1]], RewardOptions(template="<answer>{answer}</answer>"))
    assert codes(report) == {"form-only"}


@pytest.mark.parametrize("name", ["always", "nothing", "table", "number", "words", "abstains"])
def test_without_one_score_nothing_is_said_to_have_been_looked_at(world: tuple[str, str], name: str) -> None:
    report = check_reward(f"{world[0]}:{name}", [world[1]])
    assert codes(report) >= {"no-score"}
    assert codes(report) <= {"no-score", "raises", "not-a-number", "no-list"}
    assert report.looked_at[0].startswith("20 samples: 0 scores")
    assert len(report.looked_at) == 1
    told = " ".join(report.not_seen)
    assert all(word in told for word in ("determinism", "canaries", "perturbations and lengths"))


def test_what_time_did_not_allow_is_not_said_to_have_been_looked_at(world: tuple[str, str]) -> None:
    report = check_reward(f"{world[0]}:hangs", [world[1]], RewardOptions(timeout_seconds=0.3))
    assert len(report.looked_at) == 1
    assert any("canaries" in line and "--timeout" in line for line in report.not_seen)


def test_the_sample_that_makes_it_raise_is_named_and_the_others_are_still_scored(world: tuple[str, str]) -> None:
    report = check_reward(f"{world[0]}:raising", [world[1]])
    raised = next(fault for fault in report.faults if fault.code == "raises")
    assert "ZeroDivisionError" in raised.examples[0]
    assert "empty" in raised.examples[0]
    assert report.facts["scores"]["gold_mean"] == 1.0  # type: ignore[index]


def test_nan_for_what_a_policy_does_write_is_a_fault_though_no_gold_answer_gets_it(world: tuple[str, str]) -> None:
    report = check_reward(f"{world[0]}:nan_for_empty", [world[1]])
    (fault,) = [one for one in report.faults if one.code == "not-finite"]
    assert "empty" in fault.examples[0]
    assert fault.examples[0].endswith("nan")


def test_a_reward_that_hangs_ends_at_the_deadline(world: tuple[str, str]) -> None:
    report = check_reward(f"{world[0]}:hangs", [world[1]], RewardOptions(timeout_seconds=0.3))
    assert codes(report) == {"timeout"}
    assert report.seconds < 20


def test_the_report_on_a_reward_that_hangs_is_on_standard_output(world: tuple[str, str], capsys: Any) -> None:
    command = ["check", "reward", f"{world[0]}:hangs", "--data", world[1], "--timeout", "0.3", "--json"]
    assert main(command) == 1
    assert json.loads(capsys.readouterr().out)["faults"][0]["code"] == "timeout"


def test_a_slow_reward_is_tried_on_as_many_samples_as_there_is_time_for_and_says_how_many_were_left_out(
    world: tuple[str, str],
) -> None:
    report = check_reward(f"{world[0]}:slow", [world[1]], RewardOptions(timeout_seconds=2.0))
    assert report.seconds < 10
    assert any("of 20 samples" in line and "--timeout" in line for line in report.not_seen)
    assert check_reward(f"{world[0]}:good", [world[1]]).facts["canaries"]["empty"]["cases"] == 20  # type: ignore[index]


def test_scores_out_of_the_given_range_and_perturbations_of_ones_own_are_judged(world: tuple[str, str]) -> None:
    options = RewardOptions(low=0.0, high=0.5, perturbations=world[0])
    report = check_reward(f"{world[0]}:good", [world[1]], options)
    assert codes(report) == {"out-of-range", "not-robust"}
    assert [fault.subject for fault in report.faults if fault.code == "not-robust"] == ["shouted"]


def test_the_command_prints_json_alone_whatever_the_reward_prints(world: tuple[str, str], capsys: Any) -> None:
    assert main(["check", "reward", f"{world[0]}:good", "--data", world[1], "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["version"], body["faults"]) == ("grpo-sentinel/reward-check", 1, [])
    assert main(["check", "reward", f"{world[0]}:constant", "--data", world[1]]) == 1


def test_json_stands_alone_also_where_the_reward_writes_to_the_descriptor_or_starts_a_process(
    world: tuple[str, str], capfd: Any
) -> None:
    assert main(["check", "reward", f"{world[0]}:loud", "--data", world[1], "--samples", "4", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["clean"]
    assert "written" in err
    assert "by a child" in err


def test_what_cannot_be_tried_is_one_sentence(world: tuple[str, str], tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "none.jsonl").write_text('{"prompt": "a"}\n')
    for target, data in [("nowhere", world[1]), (f"{world[0]}:absent", world[1]), (f"{world[0]}:value", world[1]),
                         ("no_such_module:f", world[1]), (f"{world[0]}:good", str(tmp_path / "none.jsonl"))]:  # fmt: skip
        assert main(["check", "reward", target, "--data", data]) == 2, target
        assert capsys.readouterr().err.count("\n") == 1


def test_rank_correlation_shares_ties_and_is_none_without_variation() -> None:
    assert ranks([3.0, 1.0, 3.0]) == [2.5, 1.0, 2.5]
    assert spearman([(1, 1), (2, 8), (3, 27)]) == pytest.approx(1.0)
    assert spearman([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1.0)
    assert spearman([(1, 1), (2, 1)]) is None


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("reward_model")
    raw = tokenizers.Tokenizer(tokenizers.models.BPE())
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    raw.train_from_iterator(["a"], tokenizers.trainers.BpeTrainer(
        special_tokens=["<eos>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))  # fmt: skip
    transformers.PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>", pad_token="<eos>").save_pretrained(
        str(path)
    )
    config = transformers.Qwen2Config(vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                      num_key_value_heads=1, intermediate_size=16, num_labels=1, pad_token_id=0)  # fmt: skip
    transformers.Qwen2ForSequenceClassification(config).save_pretrained(str(path))
    return path


@pytest.mark.torch
def test_a_reward_model_is_loaded_scored_and_its_state_read_by_the_agents_probe(
    model_dir: Path, world: tuple[str, str]
) -> None:
    report = check_reward(str(model_dir), [world[1]], RewardOptions(samples=6))
    assert report.facts["state"]["model_training_modules"] == 0  # type: ignore[index]
    assert not codes(report) & {
        "weights-missing",
        "training-mode",
        "dropout",
        "not-frozen",
        "nondeterministic",
        "order",
        "raises",
    }
    assert any("freezes" in line for line in report.not_seen)


def test_the_loss_of_a_head_is_that_of_its_pairs_or_labels() -> None:
    from grpo_sentinel.preflight.reward_head import head_loss
    from grpo_sentinel.preflight.reward_target import Sample
    from grpo_sentinel.preflight.reward_trial import Trial

    class Model:
        name, is_model = "model", True

        def __init__(self, taste: float) -> None:
            self.taste = taste

        def score(self, samples: Any) -> list[float]:
            return [self.taste if one.completion.startswith("good") else -self.taste for one in samples]

    def loss(taste: float, rows: list[dict[str, Any]]) -> Any:
        samples = [Sample(prompt=[("", "q")], completion="good", columns=row) for row in rows]
        return head_loss(Trial(Model(taste), time.monotonic() + 10), samples)

    pairs: list[dict[str, Any]] = [
        {"chosen": "good", "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "bad"}]}
    ] * 6
    assert loss(3.0, pairs).value == pytest.approx(math.log1p(math.exp(-6.0)))
    assert loss(0.0, pairs).value == pytest.approx(math.log(2))
    assert "alarm above 0.5" in loss(0.0, pairs).says()
    labels = loss(0.25, [{"reward": 1.0}] * 6)
    assert (labels.kind, labels.value) == ("labels", pytest.approx(0.5625))
    assert loss(1.0, [{"answer": "4"}] * 6) is None
    assert loss(1.0, pairs[:2]) is None


@pytest.mark.torch
def test_a_head_that_knows_nothing_of_the_datas_pairs_is_told(model_dir: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"what is {n}?", "chosen": f"it is {n}", "rejected": f"no idea of {n}"} for n in range(12)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    report = check_reward(str(model_dir), [str(path)], RewardOptions(samples=8))
    found = next(fault for fault in report.faults if fault.code == "head-loss")
    assert "8 pairs" in found.message


@pytest.mark.torch
def test_a_base_model_as_reward_model_is_told_by_its_random_head(
    model_dir: Path, world: tuple[str, str], tmp_path: Path
) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(model_dir, tmp_path / "base")
    tensors = load_file(tmp_path / "base" / "model.safetensors")
    del tensors["score.weight"]
    save_file(tensors, tmp_path / "base" / "model.safetensors", metadata={"format": "pt"})
    report = check_reward(str(tmp_path / "base"), [world[1]], RewardOptions(samples=4))
    missing = next(fault for fault in report.faults if fault.code == "weights-missing")
    assert missing.examples == ("score.weight",)


@pytest.mark.torch
def test_a_model_left_in_training_mode_with_dropout_is_named(
    model_dir: Path, world: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "prepared.py").write_text(
        "import transformers, torch\n"
        f"model = transformers.AutoModelForSequenceClassification.from_pretrained({str(model_dir)!r})\n"
        "model.score = torch.nn.Sequential(torch.nn.Dropout(0.5), model.score)\nmodel.train()\n"
        f"tokenizer = transformers.AutoTokenizer.from_pretrained({str(model_dir)!r})\n"
    )
    report = check_reward(f"{tmp_path / 'prepared.py'}:model", [world[1]], RewardOptions(samples=6))
    assert codes(report) >= {"training-mode", "dropout", "not-frozen", "nondeterministic"}


def prepared(model_dir: Path, tmp_path: Path, change: str) -> str:
    """A module with the model, changed in one way, and its tokenizer."""
    path = tmp_path / f"prepared_{abs(hash(change))}.py"
    path.write_text(
        "import torch, transformers\n"
        f"model = transformers.AutoModelForSequenceClassification.from_pretrained({str(model_dir)!r}).eval().requires_grad_(False)\n"
        f"tokenizer = transformers.AutoTokenizer.from_pretrained({str(model_dir)!r})\n{change}\n"
    )
    return f"{path}:model"


@pytest.mark.torch
def test_a_head_bias_that_nobody_zeroed_and_the_offset_it_makes_are_told(
    model_dir: Path, world: tuple[str, str], tmp_path: Path
) -> None:
    biased = "model.score = torch.nn.Linear(16, 1).eval().requires_grad_(False)\nmodel.score.weight.mul_(0.1)\nmodel.score.bias.fill_({})"
    state = {"training-mode", "dropout", "not-frozen", "head-bias", "adapter"}
    found = codes(check_reward(prepared(model_dir, tmp_path, biased.format(7.0)), [world[1]], RewardOptions(samples=6)))
    assert found & state == {"head-bias"}
    assert "offset" in found
    report = check_reward(prepared(model_dir, tmp_path, biased.format(0.0)), [world[1]], RewardOptions(samples=6))
    assert codes(report) & (state | {"offset"}) == set()
    assert report.facts["state"]["model_head_bias"] == 0.0  # type: ignore[index]


@pytest.mark.torch
def test_an_adapter_that_is_switched_off_is_told(model_dir: Path, world: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    adapted = (
        "import peft\nmodel = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=['q_proj']))\n"
        "model.eval().requires_grad_(False)\n"
    )
    assert "adapter" not in codes(
        check_reward(prepared(model_dir, tmp_path, adapted), [world[1]], RewardOptions(samples=4))
    )
    off = adapted + "model.base_model.disable_adapter_layers()\n"
    found = codes(check_reward(prepared(model_dir, tmp_path, off), [world[1]], RewardOptions(samples=4)))
    assert "adapter" in found


@pytest.mark.parametrize("gold", ["The answer is 7", "因此答案是 7。"])
def test_perturbations_and_canaries_follow_the_language_and_never_the_answer(gold: str) -> None:
    from grpo_sentinel.preflight.reward_cases import PERTURBATIONS, canaries, of_lengths
    from grpo_sentinel.preflight.reward_target import Sample

    sample = Sample(prompt=[("user", "3 + 4?")], completion=gold, answer="7")
    found = canaries(sample)
    assert set(found) >= {"empty", "repeated token", "copied prompt", "typo in the answer"}
    assert "7" not in found["typo in the answer"]
    assert found["repeated token"].split()[0] == ("the" if gold.isascii() else "的")
    for name, ways in PERTURBATIONS.items():
        for way in ways:
            assert way(gold) != gold, name
            assert "7" in way(gold), name
    texts = of_lengths(gold, 400, 20)
    assert all(text.endswith(gold) for text in texts)
    assert max(map(len, texts)) >= 400
    assert canaries(Sample(prompt=[], completion=r"\boxed{7}", answer="7"))["wrong format"] == "7"


KEEPING = """
import os, torch
net = torch.nn.Linear(1, 1)
kept = []

def _good(completions, answer):
    return [float(c == a) for c, a in zip(completions, answer)]

def _passed(completions):
    return net(torch.tensor([[float(len(c))] for c in completions]))[:, 0] ** 2

def graphed(completions, answer, **kw):
    _passed(completions)
    return _good(completions, answer)

def attached(completions, answer, **kw):
    return torch.tensor(_good(completions, answer), requires_grad=True)

def quiet(completions, answer, **kw):
    with torch.no_grad():
        return torch.tensor(_good(completions, answer)) + 0 * _passed(completions)

def tensors(completions, answer, **kw):
    kept.append(torch.ones(7, 1000))
    return quiet(completions, answer)

def objects(completions, answer, **kw):
    kept.extend({"text": [c]} for c in completions)
    return quiet(completions, answer)

def files(completions, answer, **kw):
    kept.append(open(os.devnull))
    return quiet(completions, answer)

def process(completions, answer, **kw):
    kept.append(bytearray(os.urandom(4 << 20)))
    return quiet(completions, answer)
"""


@pytest.mark.torch
@pytest.mark.parametrize(("name", "code", "word"), [
    ("quiet", "", ""), ("graphed", "keeps-graph", "saved for a backward"), ("attached", "keeps-graph", "need a gradient"),
    ("tensors", "memory-grows", "float32[7, 1000] cpu"), ("objects", "memory-grows", "objects of Python"),
    ("files", "memory-grows", "1 open files"), ("process", "memory-grows", "outside of tensors"),
])  # fmt: skip
def test_a_reward_that_keeps_a_graph_or_more_memory_at_every_call_is_told_with_the_kind(
    world: tuple[str, str], tmp_path: Path, name: str, code: str, word: str
) -> None:
    (tmp_path / "keeping.py").write_text(KEEPING)
    report = check_reward(f"{tmp_path / 'keeping.py'}:{name}", [world[1]])
    assert codes(report) == ({code} if code else set())
    assert word in " ".join(one.message for one in report.faults)


def test_a_model_without_torch_is_one_sentence(world: tuple[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(SentinelError, match="torch and transformers"):
        check_reward(str(tmp_path), [world[1]])
