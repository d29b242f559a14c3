"""The command line as a whole: its commands, input checks and failures."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

from lethe_client import LetheClientError, ProblemError
from service.cli import (
    audit_figures,
    audit_leftovers,
    audit_log,
    audit_recheck,
    audit_watch,
    database,
    delete,
    doctor,
    grow,
    keys,
    ledger_commands,
    models,
    predict,
    recover,
    serve,
    served_models,
    train,
    webhook_commands,
)
from service.cli.console import note, report, reported, status_of, stdout
from service.settings import require_known_variables
from service.version import VERSION

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Command(TyperCommand):
    """Refuses empty values and repeated options; the parser would use the last one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; usage errors name the option."""
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
        """Register a command, like `typer.Typer.command`."""
        return super().command(name, cls=Command, **settings)


#: Most entries of a list printed from a refusal.
_LISTED = 20


def main(arguments: Sequence[str]) -> None:
    """Run one command and exit with an `ExitStatus`."""
    try:
        with reported():
            build()(args=list(arguments), prog_name="lethe")
    except LetheClientError as error:
        report(error.detail, error.remedy)
        if isinstance(error, ProblemError):
            for line in _listed(error):
                note(line)
        raise SystemExit(status_of(error)) from None


def _listed(problem: ProblemError) -> Iterator[str]:
    """Yield one line for each list in a refusal, such as unknown ids, truncated if long."""
    for name, values in problem.extra.items():
        if isinstance(values, list) and values:
            more = f", and {len(values) - _LISTED} more" if len(values) > _LISTED else ""
            yield f"  {name}: {', '.join(map(_entry, values[:_LISTED]))}{more}"


def _entry(value: object) -> str:
    """Format one entry: an id, the ends of an edge, or a fault with its place in the request."""
    if isinstance(value, dict):
        return f"{'.'.join(map(str, value.get('loc', [])))}: {value.get('msg', '')}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def build() -> typer.Typer:
    """Build the application with every command."""
    lethe = CommandLine(
        help="Makes a trained linear graph neural network forget nodes, and proves it.",
        no_args_is_help=True,
        epilog="In a checkout, [bold]./lethe test[/bold] runs the tests and "
        "[bold]./lethe check[/bold] checks lint, types and import rules.",
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    lethe.callback()(_root)
    lethe.command("serve")(serve.command())
    lethe.command("train")(train.command)
    lethe.command("delete")(delete.command)
    lethe.command("add")(grow.add)
    lethe.command("correct")(grow.correct)
    lethe.command("drill")(delete.drill_command)
    lethe.command("retry")(delete.retry)
    lethe.command("handle")(delete.handle)
    lethe.command("extend")(delete.extend)
    lethe.command("hold")(delete.hold)
    lethe.command("release")(delete.release)
    lethe.command("predict")(predict.predict)
    lethe.command("migrate")(database.migrate_command)
    lethe.command("recover")(recover.command)
    lethe.command("doctor")(doctor.command)
    of_models: dict[str, Callable[..., None]] = {
        "import": models.import_,
        "list": served_models.list_,
        "show": served_models.show,
        "export": served_models.export,
    }
    lethe.add_typer(_group("Import, list, show and export models.", of_models), name="model")
    evidence: dict[str, Callable[..., None]] = {
        "show": audit_figures.show,
        "summary": audit_figures.summary,
        "requests": audit_figures.requests,
        "receipt": audit_figures.receipt,
        "key": audit_log.key,
        "export": audit_log.export,
        "verify": audit_log.verify,
        "watch": audit_watch.watch,
        "recheck": audit_recheck.recheck,
        "leftovers": audit_leftovers.leftovers,
    }
    lethe.add_typer(_group("Read and check the evidence.", evidence), name="audit")
    lethe.add_typer(
        _group(
            "Manage API keys.",
            {"create": keys.create, "list": keys.list_, "rotate": keys.rotate, "revoke": keys.revoke},
        ),
        name="keys",
    )
    of_the_ledger: dict[str, Callable[..., None]] = {
        "show": ledger_commands.show,
        "rotate": ledger_commands.rotate,
        "trim": ledger_commands.trim,
    }
    lethe.add_typer(_group("Check and trim the erasure ledger, and change its key.", of_the_ledger), name="ledger")
    endpoints: dict[str, Callable[..., None]] = {
        "add": webhook_commands.add,
        "list": webhook_commands.list_,
        "remove": webhook_commands.remove,
        "ping": webhook_commands.ping,
    }
    lethe.add_typer(_group("Manage webhooks: events sent to other programs.", endpoints), name="webhooks")
    return lethe


def _print_version(wanted: bool) -> None:
    if wanted:
        stdout().print(f"lethe {VERSION}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options and checks shared by all commands."""
    require_known_variables(os.environ)


def _group(help_text: str, commands: dict[str, Callable[..., None]]) -> typer.Typer:
    group = CommandLine(help=help_text, no_args_is_help=True)
    for name, function in commands.items():
        group.command(name)(function)
    return group
