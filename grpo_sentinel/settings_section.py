"""What all sections of the settings share: unknown keys are refused, and so are values that make no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

_USUALLY_AT_MOST = 600
_MOST_SECONDS = {
    "acknowledge_seconds": 86_400, "checkpoint_seconds": 86_400, "terminate_seconds": 86_400,
    "kill_after_seconds": 86_400, "notice_seconds": 86_400, "cooldown_seconds": 604_800,
    "evidence_cooldown_seconds": 604_800, "linger_seconds": 3_600, "stale_seconds": 86_400, "repost_seconds": 86_400,
    "group_wait_seconds": 3_600, "group_interval_seconds": 86_400,
}  # fmt: skip


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _off_is_a_word(cls, data: Any) -> Any:
        """YAML reads a bare `off` as false; where "off" is one of the choices it is what was meant."""
        if not isinstance(data, dict):
            return data
        fields = cls.model_fields
        return {
            key: "off" if value is False and key in fields and "off" in get_args(fields[key].annotation) else value
            for key, value in data.items()
        }

    @field_validator("*")
    @classmethod
    def _seconds_are_not_milliseconds(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        most = _MOST_SECONDS.get(name, _USUALLY_AT_MOST)
        if name.endswith("_seconds") and isinstance(value, float) and not value <= most:
            raise ValueError(f"at most {most:,} seconds make sense; it is not in milliseconds")
        return value


def in_a_place_that_exists(directory: str | None) -> str | None:
    """Take a path of which at most the last folder is missing: a mistyped one must not be made, under `/` or elsewhere.

    Raises ValueError, which pydantic makes a mistake of the key.
    """
    if directory is not None and not (parent := Path(directory).expanduser().absolute().parent).is_dir():
        raise ValueError(f"there is no directory {parent} to make it in; make that one or correct the path")
    return directory


__all__ = ["Section", "in_a_place_that_exists"]
