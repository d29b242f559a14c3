"""The command line as a whole: which commands there are, and how they fail."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import typer

from lethe_client import LetheClientError, ProblemError
from service.cli.command import CommandLine
from service.cli.console import note, report, stdout
from service.cli.deletions import decide, delete, drill, retry
from service.cli.evidence import leftovers, log, overview, recheck, show, watch
from service.cli.exit_status import status_of
from service.cli.failures import reported
from service.cli.models import model_import, predict, train
from service.cli.running import doctor, keys, migrate, recover, serve, webhooks
from service.settings import require_known_variables
from service.version import VERSION

#: So many entries of a list in a refusal are printed.
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
    """What a refusal lists, such as the ids it calls unknown: a line for each list, cut where it is long."""
    for name, values in problem.extra.items():
        if isinstance(values, list) and values:
            more = f", and {len(values) - _LISTED} more" if len(values) > _LISTED else ""
            yield f"  {name}: {', '.join(map(_told, values[:_LISTED]))}{more}"


def _told(value: object) -> str:
    """One entry of a list: an id, the ends of an edge, or a fault with its place in what was sent."""
    if isinstance(value, dict):
        return f"{'.'.join(map(str, value.get('loc', [])))}: {value.get('msg', '')}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def build() -> typer.Typer:
    """The application with every command."""
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
    lethe.command("drill")(drill.command)
    lethe.command("retry")(retry.command)
    lethe.command("handle")(decide.handle)
    lethe.command("extend")(decide.extend)
    lethe.command("predict")(predict.command)
    lethe.command("migrate")(migrate.command)
    lethe.command("recover")(recover.command)
    lethe.command("doctor")(doctor.command)
    lethe.add_typer(_group("Import trained models.", {"import": model_import.import_}), name="model")
    evidence: dict[str, Callable[..., None]] = {
        "show": show.show,
        "summary": overview.summary,
        "requests": overview.requests,
        "receipt": show.receipt,
        "key": log.key,
        "export": log.export,
        "verify": log.verify,
        "watch": watch.watch,
        "recheck": recheck.recheck,
        "leftovers": leftovers.leftovers,
    }
    lethe.add_typer(_group("Read and check the evidence.", evidence), name="audit")
    lethe.add_typer(
        _group("Manage API keys.", {"create": keys.create, "list": keys.list_, "revoke": keys.revoke}), name="keys"
    )
    endpoints: dict[str, Callable[..., None]] = {
        "add": webhooks.add,
        "list": webhooks.list_,
        "remove": webhooks.remove,
        "ping": webhooks.ping,
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
    """What all commands share."""
    require_known_variables(os.environ)


def _group(help_text: str, commands: dict[str, Callable[..., None]]) -> typer.Typer:
    group = CommandLine(help=help_text, no_args_is_help=True)
    for name, function in commands.items():
        group.command(name)(function)
    return group
