"""Lengths in tokens and faults of the template, by the real tokenizer of a model directory (S3, S4).

`tokenizers` alone gives tokens; the chat template needs transformers. Neither is imported before it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from grpo_sentinel.errors import SentinelError
from grpo_sentinel.preflight.data_frames import Chat, Frames
from grpo_sentinel.preflight.data_shapes import Messages, joined

NO_TEMPLATE = (
    "prompts are messages, and the tokenizer has no chat template: a trainer refuses them until it is given one; they "
    "are taken as plain text here"
)
_NO_LIMIT = 1_000_000  # transformers writes 1e30 for "no limit"


class Tokens(NamedTuple):
    """One sample in tokens: all of them, those of the prompt, and what is wrong as (code, text)."""

    total: int
    prompt: int
    faults: tuple[tuple[str, str], ...] = ()


class Encoder:
    """A tokenizer, with its chat template where transformers is importable."""

    def __init__(self, directory: Path) -> None:
        """Load it from the directory alone, never from a network. Raises `SentinelError`."""
        if not directory.is_dir():
            raise SentinelError(f"no tokenizer in {directory}: give the directory of a model or tokenizer")
        self._rich: Any = None
        self._plain: Any = None
        try:
            self._rich = import_module("transformers").AutoTokenizer.from_pretrained(
                str(directory), local_files_only=True
            )
        except ImportError:
            self._plain = _plain(directory)
        except Exception as error:  # noqa: BLE001 - whatever a foreign loader raises about a foreign file
            try:
                self._plain = _plain(directory)
            except SentinelError:
                reason = " ".join(str(error).split())[:200]
                raise SentinelError(f"the tokenizer in {directory} cannot be loaded: {reason}") from error
        self.limit = _limit(directory, self._rich)
        if self._rich is not None and not self._rich("one 1", add_special_tokens=False)["input_ids"]:
            raise SentinelError(f"the tokenizer in {directory} gives not one token: its vocabulary is not there; give "
                                "a directory with tokenizer.json or the files of its vocabulary")  # fmt: skip
        self.special_tokens = self._special_tokens()
        template = getattr(self._rich, "chat_template", None)
        self.has_template = bool(template)
        self._fast: Callable[[Any], Any] | None = None
        self._tried = False
        self._frames = Frames(self._template)
        self.bos: int | None = getattr(self._rich, "bos_token_id", None)
        self._bos_text = str(getattr(self._rich, "bos_token", "") or "")

    def notes(self) -> tuple[str, ...]:
        """What is worth knowing about the tokenizer itself."""
        out = []
        if self._rich is None:
            out.append("transformers is not usable here: lengths are without the chat template")
        else:
            if self._rich.pad_token_id is not None and self._rich.pad_token_id == self._rich.eos_token_id:
                out.append("the padding token is the end token: a trainer that masks by id hides the end from the loss")
            if self._rich.pad_token_id is None:
                out.append("the tokenizer has no padding token: the trainer must choose one")
            if self._rich.padding_side != "left":
                out.append(f"padding side is {self._rich.padding_side}; generation in batches needs left (TRL sets it)")
        return tuple(out)

    def encode(self, samples: Sequence[tuple[Messages, Messages]]) -> list[Tokens]:
        """Count tokens of (prompt, response) as the trainer would make them, without truncation."""
        prompts: list[str] = []
        chats: list[int] = []
        plain: list[int] = []
        answers: list[int] = []
        faults: dict[int, list[tuple[str, str]]] = {}
        for index, (prompt, response) in enumerate(samples):
            if prompt and prompt[0][0]:
                text, wrong = self._render(prompt)
                if wrong:
                    faults[index] = [("template", wrong)]
                (chats if self.has_template else plain).append(index)
            else:
                text = joined(prompt) if prompt else ""
                plain.append(index)
            prompts.append(text)
            if response:
                answers.append(index)
        ids: list[Any] = [()] * len(prompts)
        for places, special in ((chats, False), (plain, True)):  # a template writes its own BOS; trainers add none
            for index, row in zip(places, self._ids([prompts[i] for i in places], special=special), strict=True):
                ids[index] = row
        sizes = [len(row) for row in ids]
        totals = sizes.copy()
        responses = self._ids([joined(samples[index][1]) for index in answers], special=False)
        for index, row in zip(answers, responses, strict=True):
            totals[index] += len(row)
        for index, size in enumerate(sizes):
            if self._begins_twice(prompts[index], ids[index]):
                faults.setdefault(index, []).append(("doubled-bos", prompts[index]))
            if not size and prompts[index] and not prompts[index].isspace():
                faults.setdefault(index, []).append(("empty-prompt", "nothing is left of it after tokenisation"))
        return [Tokens(totals[index], size, tuple(faults.get(index, ()))) for index, size in enumerate(sizes)]

    def _begins_twice(self, text: str, row: Any) -> bool:
        """Two BOS at the start; the ids are made into a list only where the text itself begins with one."""
        if self.bos is None or not text.startswith(self._bos_text):
            return False
        return list(_list_of(row)[:2]) == [self.bos, self.bos]

    def _render(self, prompt: Messages) -> tuple[str, str]:
        """Text of a conversation as the template writes it, and what the template raised."""
        if not self.has_template:
            return joined(prompt), ""
        try:
            return self._frames.text(prompt), ""
        except Exception as error:  # noqa: BLE001 - a template may raise anything
            return joined(prompt), f"{type(error).__name__}: {error}"

    def _template(self, chat: Chat) -> str:
        """Render by the template itself."""
        if self._fast is not None:
            return str(self._fast(chat))
        text = str(self._rich.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))
        if not self._tried:
            self._tried = True
            self._fast = _fast_template(self._rich, chat, text)
        return text

    def _ids(self, texts: list[str], *, special: bool) -> list[Any]:
        """Something with a length for each text: an Encoding, whose ids are not copied, or a list of ids."""
        if not texts:
            return []
        texts = [  # surrogates are told elsewhere
            text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8") for text in texts
        ]
        if self._plain is not None:
            return list(self._plain.encode_batch(texts, add_special_tokens=special))
        fast = getattr(self._rich, "backend_tokenizer", None)
        if fast is not None and hasattr(fast, "encode_batch_fast"):
            fast.no_truncation()
            fast.no_padding()
            return list(fast.encode_batch_fast(texts, add_special_tokens=special))
        rows = self._rich(texts, truncation=False, padding=False, verbose=False, add_special_tokens=special)
        return list(rows["input_ids"])

    def _special_tokens(self) -> tuple[str, ...]:
        if self._rich is not None:
            return tuple(str(token) for token in self._rich.all_special_tokens)
        added = self._plain.get_added_tokens_decoder()
        return tuple(token.content for token in added.values() if token.special)


def _fast_template(tokenizer: Any, chat: Any, expected: str) -> Callable[[Any], Any] | None:
    """Render with the compiled template itself, which takes less than half the time; None where it is another text.

    It is transformers' own compiled template (sandboxed), reached by a private name; tried once against the public way.
    """
    try:
        utils = import_module("transformers.utils.chat_template_utils")
        render = utils._compile_jinja_template(tokenizer.get_chat_template()).render
        extra = {"tools": None, "documents": None, "add_generation_prompt": True, **tokenizer.special_tokens_map}

        def fast(messages: Any) -> Any:
            return render(messages=messages, **extra)

        return fast if fast(chat) == expected else None
    except Exception:  # noqa: BLE001 - another version of transformers: the public way works
        return None


def _list_of(row: Any) -> Any:
    return row.ids if hasattr(row, "ids") else row


def _plain(directory: Path) -> Any:
    try:
        tokenizers = import_module("tokenizers")
    except ImportError as error:
        raise SentinelError(
            "--tokenizer needs transformers or tokenizers, and neither is installed here: pip install tokenizers"
        ) from error
    path = directory / "tokenizer.json"
    try:
        found = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise SentinelError(f"{path} cannot be loaded: {error}; give the directory of a model or tokenizer") from error
    found.no_truncation()
    found.no_padding()
    return found


def _limit(directory: Path, tokenizer: Any) -> int | None:
    """The model's own limit: positions of its config, else what the tokenizer was saved with."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        positions = config.get("max_position_embeddings")
        if isinstance(positions, int) and positions > 0:
            return positions
    except (OSError, ValueError, AttributeError):
        pass
    saved = getattr(tokenizer, "model_max_length", None)
    return int(saved) if isinstance(saved, (int, float)) and 0 < saved < _NO_LIMIT else None


__all__ = ["NO_TEMPLATE", "Encoder", "Tokens"]
