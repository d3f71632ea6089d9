"""The tiny world that the plain loop trains in: a two-layer transformer, a copying task, three reward functions.

Small enough that a step takes about ten milliseconds on one core, and yet a real policy: it samples, ends by itself,
is warmed up on the task by supervised steps, and improves slowly under GRPO.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, PAD, EOS, SEP, UNK = 64, 0, 1, 2, 3
DIGITS = range(4, 20)
FILLERS = range(20, 40)
PROMPT, COMPLETION = 8, 14  # longest, in tokens
HIDDEN, LAYERS, HEADS = 32, 2, 2


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x_BTH: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x_BTH.shape
        qkv = self.qkv(self.norm1(x_BTH)).view(rows, length, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=bias)
        x_BTH = x_BTH + self.out(mixed.transpose(1, 2).reshape(rows, length, HIDDEN))
        return x_BTH + self.down(F.gelu(self.up(self.norm2(x_BTH))))


class Policy(nn.Module):
    """Logits for every position; left-padded rows are told by their mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.place = nn.Embedding(PROMPT + COMPLETION + 1, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.lm_head = nn.Linear(HIDDEN, VOCAB)

    def forward(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        length = ids_BT.shape[1]
        kept = mask_BT != 0
        places = (kept.long().cumsum(1) - 1).clamp(min=0)
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        seen = causal & kept[:, None, None, :]
        seen = seen | torch.eye(length, dtype=torch.bool)  # a padded row still sees itself
        x = self.embed(ids_BT) + self.place(places)
        bias = torch.zeros_like(seen, dtype=x.dtype).masked_fill(~seen, -1e4)
        for layer in self.layers:
            x = layer(x, bias)
        return self.lm_head(self.norm(x))


class Judge(nn.Module):
    """A frozen reward model: scores a completion by its mean embedding; has a dropout that must stay off."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop, self.score = nn.Embedding(VOCAB, 16), nn.Dropout(0.4), nn.Linear(16, 1)

    def forward(self, ids_BC: torch.Tensor, mask_BC: torch.Tensor) -> torch.Tensor:
        kept = (mask_BC != 0).unsqueeze(2)
        mean = (self.embed(ids_BC.clamp(0, VOCAB - 1)) * kept).sum(1) / kept.sum(1).clamp(min=1)
        return torch.sigmoid(self.score(self.drop(torch.tanh(mean)))).squeeze(1)


def prompt_of(draw: random.Random) -> list[int]:
    """Draw 3 to 6 digits and the separator."""
    return [*draw.choices(DIGITS, k=draw.randint(3, 6)), SEP]


def wanted(prompt: list[int]) -> list[int]:
    """Give the right answer: the digits again."""
    return [token for token in prompt if token != SEP]


def accuracy(prompt: list[int], completion: list[int], wanted_tokens: list[int]) -> float:
    """Share of the wanted digits that stand in the completion in their order."""
    hits, at = 0, 0
    for token in completion:
        if at < len(wanted_tokens) and token == wanted_tokens[at]:
            hits, at = hits + 1, at + 1
    return hits / max(1, len(wanted_tokens))


def shortness(prompt: list[int], completion: list[int], wanted_tokens: list[int]) -> float:
    """Pay for ending by itself without fillers."""
    fillers = sum(token in FILLERS for token in completion)
    return (0.5 if EOS in completion else 0.0) + 0.5 / (1 + fillers)


@torch.no_grad()
def sample(
    policy: Any,
    prompt_BP: torch.Tensor,
    mask_BP: torch.Tensor,
    *,
    temperature: float = 1.0,
    limit: int = COMPLETION,
    ban_eos: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sample completions: ids_BC, mask_BC (int64) and the sampled tokens' log-probs as the rollout engine saw them.

    The engine computes its log-probs from logits rounded to bf16, as rollout engines do.
    """
    ids, mask = prompt_BP, mask_BP
    rows = ids.shape[0]
    open_rows = torch.ones(rows, dtype=torch.bool)
    tokens, kept, logps = [], [], []
    for _ in range(limit):
        logits = policy(ids, mask)[:, -1].float() / temperature
        if ban_eos:
            logits[:, EOS] = -1e4
        logits = torch.nan_to_num(logits.bfloat16().float())
        spread = torch.log_softmax(logits, 1)
        token = torch.multinomial(spread.exp().clamp(min=1e-12), 1).squeeze(1)
        token = torch.where(open_rows, token, torch.full_like(token, PAD))
        tokens.append(token)
        kept.append(open_rows.long())
        logps.append(spread.gather(1, token[:, None]).squeeze(1) * open_rows)
        ids = torch.cat([ids, token[:, None]], 1)
        mask = torch.cat([mask, open_rows.long()[:, None]], 1)
        open_rows = open_rows & (token != EOS)
        if not open_rows.any():
            break
    return torch.stack(tokens, 1), torch.stack(kept, 1), torch.stack(logps, 1)


def pad_left(rows: list[list[int]], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad rows to the left: ids and mask, int64."""
    ids, mask = torch.full((len(rows), width), PAD), torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, width - len(row) :] = torch.tensor(row)
        mask[index, width - len(row) :] = 1
    return ids, mask


def warmed(path: Path, steps: int = 300) -> None:
    """Warm a policy up on noisy answers and store it with the judge, once; the same seed gives the same weights."""
    if path.is_file():
        return
    torch.manual_seed(1)
    draw = random.Random(1)
    policy, judge = Policy(), Judge()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for _ in range(steps):
        rows = []
        for _ in range(48):
            prompt = prompt_of(draw)
            answer = [draw.choice(DIGITS) if draw.random() < 0.15 else token for token in wanted(prompt)]
            for _ in range(draw.randint(0, 3)):
                answer.insert(draw.randint(0, len(answer)), draw.choice(FILLERS))
            rows.append((prompt, [*answer, EOS][:COMPLETION]))
        width = max(len(p) + len(a) for p, a in rows)
        ids, mask = pad_left([p + a for p, a in rows], width)
        labels = torch.full_like(ids, -100)
        for index, (_, answer) in enumerate(rows):
            labels[index, width - len(answer) :] = torch.tensor(answer)
        logits = policy(ids, mask)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"policy": policy.state_dict(), "judge": judge.state_dict()}, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warmed(Path(sys.argv[1]))
