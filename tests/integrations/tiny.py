"""A tiny random Qwen3 policy, a BPE tokenizer and prompts, built once and kept on disk."""

import random
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(unk_token=None))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        ["user assistant 1 + 2 ="],
        trainers.BpeTrainer(vocab_size=300, special_tokens=specials, initial_alphabet=alphabet),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    fast.chat_template = TEMPLATE
    fast.model_input_names = ["input_ids", "attention_mask"]
    return fast


def build(folder: Path) -> Path:
    """Write policy and tokenizer into `folder` unless they are there."""
    if (folder / "ready").exists():
        return folder
    from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed

    set_seed(0)
    tok = tokenizer()
    config = Qwen3Config(
        vocab_size=320,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=tok.pad_token_id,
        eos_token_id=tok.eos_token_id,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tok.save_pretrained(folder)
    (folder / "ready").touch()
    return folder


def prompts(count: int = 64):
    rng = random.Random(0)
    return [
        {"prompt": [{"role": "user", "content": f"{a} + {b} ="}], "answer": str(a + b), "data_source": "sums"}
        for a, b in ((rng.randint(0, 9), rng.randint(0, 9)) for _ in range(count))
    ]
