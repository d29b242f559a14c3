"""Commands that refuse repeated options and empty values."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Command(TyperCommand):
    """Refuses repeated options, of which the parser would use the last, and empty values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; a usage error names the option."""
        if not ctx.resilient_parsing:
            values, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for option in order:
                if isinstance(option, TyperOption) and not (option.is_flag or option.count):
                    given = values[option.name] if option.multiple else [values[option.name]]
                    if "" in given:
                        ctx.fail(f"{option.opts[0]} has an empty value. Give a value, or omit the option.")
                    if order.count(option) > len(given):
                        ctx.fail(f"{option.opts[0]} is given {order.count(option)} times. Give it only once.")
        return super().parse_args(ctx, args)


class CommandLine(typer.Typer):
    """A Typer application whose commands are all of class `Command`."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        """As `typer.Typer.command`."""
        return super().command(name, cls=Command, **settings)
