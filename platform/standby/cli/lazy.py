"""Commands that are imported when they are called: ``standby --help`` and completion stay fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from standby.cli.report import report
from standby.domain.errors import ConfigurationError, StandbyError

# Filled by the components that the command line must not import: controller, node, …
ENTRY_POINTS: Final = "standby.commands"


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command as the help lists it, and where it really is (``module:attribute``)."""

    target: str
    help: str
    panel: str


class LazyGroup(TyperGroup):
    """A group whose commands are placeholders until one of them is called; errors of the tree end as exit codes."""

    table: Mapping[str, Lazy] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._lazy = {**self.table, **_found_elsewhere(self.table)}
        for name, lazy in self._lazy.items():
            self.commands[name] = TyperCommand(name=name, help=lazy.help, rich_help_panel=lazy.panel, callback=None)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the command that is called now."""
        lazy = self._lazy.pop(args[0], None)
        if lazy is not None:
            self.commands[args[0]] = load(args[0], lazy)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of the tree is printed and becomes its exit code."""
        try:
            return super().invoke(ctx)
        except StandbyError as error:
            report(error, as_json=bool(getattr(ctx.obj, "json", False)))
            raise typer.Exit(error.exit_code) from None


def load(name: str, lazy: Lazy) -> Any:
    """Import the command behind ``lazy``. Raises ConfigurationError where its component is not installed."""
    module, _, attribute = lazy.target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the command {name!r} is not installed: {error}", remedy="install it with: pip install 'standby[demo]'"
        ) from error
    return as_command(name, found)


def as_command(name: str, found: typer.Typer | Callable[..., Any]) -> Any:
    """Return a Typer app, a plain function or a ready command as a command called ``name``."""
    if hasattr(found, "make_context"):
        return found
    if not isinstance(found, typer.Typer):
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command(name)(found)
        found = app
    command = typer.main.get_command(found)
    command.name = name
    return command


def _found_elsewhere(known: Mapping[str, Lazy]) -> dict[str, Lazy]:
    return {
        point.name: Lazy(point.value, _HELP.get(point.name, f"From {point.module}."), "Components")
        for point in entry_points(group=ENTRY_POINTS)
        if point.name not in known
    }


# Help texts of our own components, known without importing them.
_HELP: Final = {
    "controller": "Run the controller: decides how many, where and on which rung.",
    "node": "Run the node agent: warm pool, engines, artifact cache and door of this machine.",
    "simulate": "Replay a trace: what a policy would have cost, and how long callers would have waited.",
}
