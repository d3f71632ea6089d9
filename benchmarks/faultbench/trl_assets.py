"""Build the tiny Qwen3 policy, reward model and prompts of the TRL runs: the demo's, with half its layers and width.

python -m benchmarks.faultbench.trl_assets FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"


def small_config(tokenizer: Any, **extra: Any) -> Any:
    """Describe the shared body: 2 layers of width 64."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=192,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **extra,
    )


def main(folder: Path) -> None:
    """Build once; the folder appears whole or not at all."""
    if (folder / "train.jsonl").is_file():
        return
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(DEMO))
    import assets

    assets.model_config = small_config
    assets.POLICY_STEPS, assets.REWARD_STEPS = 260, 80
    assets.build(folder, lambda text, share: None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
