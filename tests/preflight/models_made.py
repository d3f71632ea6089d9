"""Tiny policies, reward models and their data, built on the spot: nothing is downloaded, a model is made in a second."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = [
    "the",
    "answer",
    "is",
    "so",
    "we",
    "get",
    "right",
    "sure",
    "well",
    "it",
    "makes",
    "sum",
    "of",
    "gives",
    "that",
    "this",
    "look",
]


def tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(unk_token=None))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.train_from_iterator(
        [f" {word}" for word in WORDS] * 20,
        trainers.BpeTrainer(
            vocab_size=320, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )  # fmt: skip
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    made.chat_template = TEMPLATE
    made.save_pretrained(str(folder))
    return made


def config(made: Any, **extra: Any) -> Any:
    from transformers import Qwen3Config

    usual: dict[str, Any] = {
        "vocab_size": 320, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 24, "intermediate_size": 96, "max_position_embeddings": 256, "tie_word_embeddings": True,
        "pad_token_id": made.pad_token_id, "eos_token_id": made.eos_token_id, "bos_token_id": None,
    }  # fmt: skip
    return Qwen3Config(**usual | extra)


def policy(folder: Path, *, steps: int = 60) -> Path:
    """A policy that has learned to answer with words and an end; with 0 steps it is untrained and knows nothing."""
    import torch
    from transformers import Qwen3ForCausalLM

    made = tokenizer(folder)
    torch.manual_seed(0)
    rng = random.Random(0)
    model = Qwen3ForCausalLM(config(made))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        rows = [chat_ids(made, f"{rng.randint(0, 9)} + {rng.randint(0, 9)} ?", phrase(rng)) for _ in range(16)]
        width = max(map(len, rows))
        ids = torch.tensor([row + [made.pad_token_id] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        loss = model(input_ids=ids, attention_mask=mask, labels=ids.where(mask.bool(), -100)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


def phrase(rng: random.Random) -> str:
    return "".join(f" {rng.choice(WORDS)}" for _ in range(rng.randint(1, 6)))


def chat_ids(made: Any, question: str, answer: str) -> list[int]:
    text = made.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False)
    return list(made(text + answer + "<|im_end|>", add_special_tokens=False)["input_ids"])


def reward_model(folder: Path, **head: Any) -> Path:
    """A reward model with a head made at random and saved: state and loading are sane, its taste is not."""
    import torch
    from transformers import Qwen3ForSequenceClassification

    made = tokenizer(folder)
    torch.manual_seed(1)
    model = Qwen3ForSequenceClassification(config(made, num_labels=1, **head))
    model.save_pretrained(folder)
    return folder


def data(path: Path, *, rows: int = 40, responses: bool = False) -> Path:
    rng = random.Random(2)
    out = []
    for number in range(rows):
        row: dict[str, Any] = {"prompt": [{"role": "user", "content": f"{number % 10} + {number // 10} ?"}]}
        row["answer"] = str(number % 10 + number // 10)
        if responses:
            row["completion"] = [{"role": "assistant", "content": phrase(rng)}]
        out.append(json.dumps(row))
    path.write_text("\n".join(out) + "\n")
    return path
