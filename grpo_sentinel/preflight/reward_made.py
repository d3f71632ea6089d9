"""Completions made for prompts that come without a response or an answer: short, long, in a form, of another prompt.

They differ in length and form, so that a reward of length, form or style has something to tell apart. None is right
or wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from grpo_sentinel.preflight.data_shapes import joined
from grpo_sentinel.preflight.reward_target import Sample

_CHINESE = re.compile("[\u4e00-\u9fff]")
_ENGLISH = (
    "There are several ways to look at this, and each of them has its reasons.",
    "One may begin with what is given, write it down, and see which parts belong together.",
    "After that it helps to try a small example by hand, because mistakes are easy to find there.",
    "Some questions have a short reply; others need a story, a table, or a picture.",
    "A friend of mine once solved such a puzzle on a train between Vienna and Budapest.",
    "She drew five circles, crossed two out again, and laughed about how simple it had been.",
    "Quick methods exist too, although experts disagree on whether they are exact.",
    "If time is short, check units first, then signs, and only at last every digit.",
    "Books about the subject usually open with history before they move on to practice.",
    "My own view changed over the years: patience matters more than clever tricks.",
    "Finally, compare the outcome with a rough guess and ask whether both could be true.",
    "Whoever wants to know more will find maps, letters and old journals in most city libraries.",
)
_CHINESE_SENTENCES = (
    "这个问题可以从几个方面来看，每一种都有它的道理。", "先把已知的内容写下来，再看哪些部分彼此有关。",
    "然后用一个小例子亲手试一试，错误往往在那里最容易发现。", "有些问题一句话就能说清，有些则需要一张表或者一幅图。",
    "我的一位朋友曾经在火车上解开过类似的谜题。", "她画了五个圆圈，又划掉两个，最后笑着说原来这么简单。",
    "也有更快的方法，不过专家们对它是否准确看法不一。", "时间不够的时候，先检查单位，再检查符号，最后才看数字。",
    "最后把结果和粗略的估计比较一下，看两者能不能同时成立。", "想了解更多的人，可以去图书馆翻翻旧地图和书信。",
)  # fmt: skip
_REPEATS = 100  # of one word: shorter than the longest text made here, so that length alone does not let it win


def made_for(samples: Sequence[Sample]) -> list[list[Sample]]:
    """For each prompt completions of several kinds, no text twice; in Chinese where the prompt is."""
    out = []
    for index, one in enumerate(samples):
        other = joined(samples[(index + 1) % len(samples)].prompt)
        texts = {**_generic(bool(_CHINESE.search(joined(one.prompt))), index), "text of another prompt": other,
                 "copied prompt": joined(one.prompt)}  # fmt: skip
        unique = {text: name for name, text in texts.items() if text.strip()}
        out.append([_with(one, text, name) for text, name in unique.items()])
    return out


def canaries_for(sample: Sample) -> dict[str, Sample]:
    """An empty text, and one word again and again; by name."""
    word = "的" if _CHINESE.search(joined(sample.prompt)) else "the"
    texts = {"empty": "", "repeated token": " ".join([word] * _REPEATS)}
    return {name: _with(sample, text, name) for name, text in texts.items()}


def _generic(chinese: bool, index: int) -> dict[str, str]:
    """Texts that fit every prompt; sentences begin at another place for each, so that few texts stand twice."""
    sentences = _CHINESE_SENTENCES if chinese else _ENGLISH
    turned = [*sentences[index % len(sentences) :], *sentences[: index % len(sentences)]]
    space = "" if chinese else " "
    number = str(index + 7)
    answer = f"答案是 {number}。" if chinese else f"The answer is {number}."
    forms = (
        f"<think>\n{turned[0]}\n</think>\n<answer>\n{number}\n</answer>",
        f"<think>{turned[0]}</think> {answer} \\boxed{{{number}}}",
        f"<reasoning>\n{turned[0]}\n</reasoning>\n<answer>\n{number}\n</answer>\n",
        f"```python\nprint({number})\n```",
        f'{{"answer": {number}}}',
        f"1. {turned[0]}\n2. {turned[1]}\n\n**{number}**\n#### {number}",
    )
    return {
        "one word": "是。" if chinese else "Yes.",
        "short text": "我不知道。" if chinese else "I do not know.",
        "one sentence": turned[0],
        "three sentences": space.join(turned[:3]),
        "long text": space.join(turned),
        "a form": forms[index % len(forms)],
        "another form": forms[(index + 1) % len(forms)],
    }


def _with(sample: Sample, text: str, name: str) -> Sample:
    return replace(sample, completion=text, place=f"{sample.place}, {name}")


__all__ = ["canaries_for", "made_for"]
