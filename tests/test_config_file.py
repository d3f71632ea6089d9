"""A settings file says one thing: what it says twice, or in circles, is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_sentinel.config import load_config
from grpo_sentinel.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("halting: {dry_run: true}\nhalting: {cooldown_seconds: 5}\n", "line 2: halting stands in line 1 already"),
        ("halting:\n  dry_run: true\n  dry_run: false\n", "line 3: dry_run stands in line 2 already"),
        ("a: &x\n  b: *x\n", "a"),
        ("? [1, 2]\n: 3\n", ""),
    ],
)
def test_a_settings_file_that_contradicts_itself_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "sentinel.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert said in str(error.value)
    assert "sentinel.yaml" in str(error.value)


def test_an_anchor_may_be_used_in_several_places(tmp_path: Path) -> None:
    path = tmp_path / "sentinel.yaml"
    path.write_text("launch: &seconds {linger_seconds: 1}\n")
    assert load_config(path).launch.linger_seconds == 1
