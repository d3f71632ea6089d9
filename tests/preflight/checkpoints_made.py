"""A tiny Llama trained for four steps by `transformers.Trainer`, saving every other step."""

from __future__ import annotations

from pathlib import Path


def model():
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False,
        )
    )  # fmt: skip


def train(output: Path, *, lora: bool = False) -> Path:
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": [1 + i, 2, 3, 4], "labels": [1 + i, 2, 3, 4]} for i in range(16)]
    net = model()
    if lora:
        from peft import LoraConfig, get_peft_model

        net = get_peft_model(net, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    arguments = TrainingArguments(
        output_dir=str(output), max_steps=4, save_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    Trainer(model=net, args=arguments, train_dataset=rows).train()
    return output
