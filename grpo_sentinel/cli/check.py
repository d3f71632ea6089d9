"""`grpo-sentinel check ...`: one file per check, loaded when it is called."""

from __future__ import annotations

from importlib import import_module

import click

_CHECKS: dict[str, tuple[str, str]] = {
    "checkpoint": ("grpo_sentinel.cli.check_checkpoint:checkpoint", "Can a restart use this checkpoint?"),
    "data": ("grpo_sentinel.cli.check_data:data", "Are these samples fit to be trained on?"),
    "reward": ("grpo_sentinel.cli.check_reward:reward", "Is this reward function or model sane?"),
    "policy": ("grpo_sentinel.cli.check_policy:policy", "Does one step of this policy give numbers to train on?"),
    "gradients": ("grpo_sentinel.cli.check_gradients:gradients", "Where do gradients come from, and who holds them?"),
    "environment": ("grpo_sentinel.cli.check_environment:environment", "Will this node and installation carry a run?"),
    "config": ("grpo_sentinel.cli.check_config:config", "Will these settings train, and survive a halt?"),
    "all": ("grpo_sentinel.cli.check_all:everything", "Every check that the given paths allow."),
}


class _Checks(click.Group):
    """Checks from the table above; `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_CHECKS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _CHECKS:
            return None
        module, _, name = _CHECKS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Checks"):
            formatter.write_dl([(name, text) for name, (_, text) in _CHECKS.items()])


@click.group(cls=_Checks)
def check() -> None:
    """Check one thing before it is trusted."""
