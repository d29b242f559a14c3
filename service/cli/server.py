"""Address of a running Lethe, and the key for it."""

from pathlib import Path
from typing import Annotated

import msgspec
import psutil
import typer

from lethe_client import LetheClient
from service.errors import ConfigurationError, Unavailable
from service.processes.listening import ServerFacts, facts_paths, was_there
from service.settings import Settings, load_settings

Home = Annotated[
    Path, typer.Option("--home", envvar="LETHE_HOME", show_default="./var", help="Folder of Lethe's data.")
]
Model = Annotated[
    Path | None,
    typer.Option(
        show_default="the model served from LETHE_HOME, else LETHE_MODEL or LETHE_HOME/model",
        help="Folder of the model.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="LETHE_URL",
        show_default="the service running in LETHE_HOME",
        help="Address of the service.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="LETHE_KEY",
        show_default="the admin key in LETHE_HOME/run, if readable",
        help="API key. Use the environment variable to keep it out of the shell's history.",
    ),
]


def read_facts(home: Path) -> ServerFacts | None:
    """Return the facts of a `serve` running in `home`; None if none runs there or they are unreadable."""
    return next(filter(None, (_read(path) for _, path in facts_paths(home))), None)


def _read(path: Path) -> ServerFacts | None:
    try:
        facts = msgspec.json.decode(path.read_bytes(), type=ServerFacts)
        # After a power cut, another process may have its id; that stranger must not receive the key.
        return facts if was_there(psutil.Process(facts.pid), facts.started_at.timestamp()) else None
    except (OSError, ValueError, psutil.Error):
        return None


def settings_of(home: Path, model: Path | None = None) -> Settings:
    """Return settings for a command about the model served in `home`.

    The model's folder is `model` if given, else that of a running `serve`, else the one `serve` would choose.
    """
    facts = read_facts(home)
    return load_settings(home=home, model=model or (Path(facts.model) if facts else None))


def settings_of_used(home: Path, model: Path | None = None) -> Settings:
    """Return `settings_of` for commands that need a home where Lethe has run; raises Unavailable otherwise."""
    settings = settings_of(home, model)
    if settings.database_url is None and not settings.home.exists():
        raise _none_runs(home)
    return settings


def connect(url: str | None, key: str | None, home: Path) -> LetheClient:
    """Return a client of the Lethe selected by --url, --key and LETHE_HOME.

    The key in LETHE_HOME is sent only to the Lethe that runs there, never to another address.

    Raises:
        Unavailable: no address was given, and no Lethe runs in LETHE_HOME.
        ConfigurationError: no key was given and none can be read.
    """
    facts = read_facts(home)
    if facts is not None and url in (None, facts.url, f"{facts.url}/"):
        return LetheClient(facts.url, key or _admin_key(home))
    if url is None:
        raise _none_runs(home)
    if not key:
        raise _no_key()
    return LetheClient(url, key)


def _none_runs(home: Path) -> Unavailable:
    return Unavailable(
        f"No Lethe runs here, in {home}.",
        "Start it with `./lethe serve`, or give its folder with --home or its address with --url.",
    )


def _admin_key(home: Path) -> str:
    try:
        key = (home / "run" / "admin.key").read_text().strip()
    except OSError:
        key = ""
    if not key:
        raise _no_key()
    return key


def _no_key() -> ConfigurationError:
    return ConfigurationError(
        "No API key was given.", "Set --key or LETHE_KEY; `./lethe keys create NAME --scope …` creates a key."
    )
