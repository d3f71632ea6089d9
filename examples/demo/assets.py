"""Build everything the demo trains with, offline and from one seed: tokenizer, policy, reward model, prompts.

    python examples/demo/assets.py [--out build/demo-assets]

    OUT/policy/        Qwen3ForCausalLM (0.85 M parameters) with its tokenizer, after a short warm-up on small sums
    OUT/reward_model/  Qwen3ForSequenceClassification, one label, with its tokenizer: right sum ~ 1, wrong sum ~ 0
    OUT/train.jsonl    {"prompt": [{"role": "user", "content": "7 + 5 ="}], "answer": "12"}
    OUT/complete.json  written last: what it was built from; `ensure()` builds again when that has changed

The warm-up is only long enough that some of a group's answers are right and some are wrong: without that spread
GRPO has no advantage to learn from.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "build" / "demo-assets"
WORD_STARTS = ("", "so", "well", "right", "look", "easy", "okay", "sure")
WORD_LINKS = ("", "the answer is", "the result is", "it is", "we get", "that makes", "this gives", "the sum is")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SEED = 7
POLICY_STEPS = 160
REWARD_STEPS = 60
PROMPTS = 512

Progress = Callable[[str, float], None]


def say(text: str, share: float) -> None:
    """Print progress: `text` is what is being done, `share` how much of it is done (0 to 1)."""
    print(f"assets: {text} {share:4.0%}", file=sys.stderr, flush=True)


def sums(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield question and answer for ever: sums of two numbers up to 9."""
    while True:
        a, b = rng.randint(0, 9), rng.randint(0, 9)
        yield f"{a} + {b} =", str(a + b)


def phrase(rng: random.Random, answer: str) -> str:
    """Wrap an answer in one of 64 phrases, so that the samples of a group differ even where they agree."""
    return " ".join(part for part in (rng.choice(WORD_STARTS), rng.choice(WORD_LINKS), answer) if part)


def build_tokenizer(folder: Path) -> Any:
    """Train a byte-level BPE tokenizer with a ChatML-like template and save it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(SEED)
    pairs = sums(rng)
    corpus = [f"{q} {phrase(rng, a)}" for q, a in (next(pairs) for _ in range(3000))]
    raw = Tokenizer(models.BPE(unk_token=None))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        [*corpus, *["user\n", "assistant\n", "system\n"] * 50],
        trainers.BpeTrainer(
            vocab_size=512, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],  # else token_type_ids reach generate()
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def model_config(tokenizer: Any, **extra: Any) -> Any:
    """Describe the tiny Qwen3 that policy and reward model share: 4 layers of width 128."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **extra,
    )


def encode(tokenizer: Any, pairs: list[tuple[str, str]]) -> tuple[Any, Any, Any]:
    """Return ids_BT, mask_BT, labels_BT (int64, left-padded; labels only on the answer)."""
    import torch

    rows = []
    for question, answer in pairs:
        chat = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        rows.append((prompt, tokenizer(answer + "<|im_end|>", add_special_tokens=False)["input_ids"]))
    width = max(len(p) + len(a) for p, a in rows)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for i, (p, a) in enumerate(rows):
        ids[i, width - len(p) - len(a) :] = torch.tensor(p + a)
        mask[i, width - len(p) - len(a) :] = 1
        labels[i, width - len(a) :] = torch.tensor(a)
    return ids, mask, labels


def train_policy(tokenizer: Any, folder: Path, progress: Progress) -> None:
    """Warm up the policy on phrased sums (AdamW, 32 rows a step) and save it."""
    import torch
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(SEED)
    rng = random.Random(SEED + 1)
    pairs = sums(rng)
    model = Qwen3ForCausalLM(model_config(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=POLICY_STEPS)
    for step in range(POLICY_STEPS):
        rows = [(q, phrase(rng, a)) for q, a in (next(pairs) for _ in range(32))]
        ids, mask, labels = encode(tokenizer, rows)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 20 == 19:
            progress(f"policy warm-up, loss {loss.item():.2f},", (step + 1) / POLICY_STEPS)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train_reward_model(tokenizer: Any, policy: Path, folder: Path, progress: Progress) -> None:
    """Fit a reward model on the policy's body to tell right sums from wrong ones (least squares on 0 and 1)."""
    import torch
    from transformers import Qwen3ForCausalLM, Qwen3ForSequenceClassification

    torch.manual_seed(SEED + 2)
    rng = random.Random(SEED + 2)
    pairs = sums(rng)
    model = Qwen3ForSequenceClassification(model_config(tokenizer, num_labels=1))
    model.model.load_state_dict(Qwen3ForCausalLM.from_pretrained(policy).model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(REWARD_STEPS):
        rows, wanted = [], []
        for question, answer in (next(pairs) for _ in range(32)):
            shown = answer if rng.random() < 0.5 else str(rng.randint(0, 18))
            rows.append((question, phrase(rng, shown)))
            wanted.append(float(shown == answer))
        ids, mask, _ = encode(tokenizer, rows)
        loss = ((model(input_ids=ids, attention_mask=mask).logits[:, 0] - torch.tensor(wanted)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 19:
            progress(f"reward model, loss {loss.item():.2f},", (step + 1) / REWARD_STEPS)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def recipe() -> dict[str, str]:
    """Name what the assets depend on: this file and the versions of the libraries that write them."""
    source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    return {"source": source, **{name: version(name) for name in ("torch", "transformers", "tokenizers")}}


def ensure(out: Path = DEFAULT_OUT, progress: Progress = say) -> Path:
    """Return the folder of the assets, building them first where they are missing or of an older recipe.

    Processes that come at the same time wait for the one that builds.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.with_name(f"{out.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = out / "complete.json"
        if not stamp.is_file() or json.loads(stamp.read_text()) != recipe():
            shutil.rmtree(out, ignore_errors=True)
            build(out, progress)
            stamp.write_text(json.dumps(recipe()))
    return out


def build(out: Path, progress: Progress) -> None:
    """Build all assets into `out`; the same seed gives the same bytes."""
    from transformers.utils import logging as quiet

    quiet.disable_progress_bar()
    out.mkdir(parents=True)
    progress("tokenizer", 0.0)
    tokenizer = build_tokenizer(out / "policy")
    train_policy(tokenizer, out / "policy", progress)
    train_reward_model(tokenizer, out / "policy", out / "reward_model", progress)
    pairs = sums(random.Random(SEED + 3))
    with (out / "train.jsonl").open("w") as file:
        for question, answer in (next(pairs) for _ in range(PROMPTS)):
            row = {"prompt": [{"role": "user", "content": question}], "answer": answer}
            file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    started = time.monotonic()
    out = ensure(parser.parse_args().out)
    print(f"assets: ready in {out} after {time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
