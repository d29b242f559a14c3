"""`lethe audit watch`: lets an auditor monitor a log that somebody else runs."""

import random
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from lethe_client import LetheClient, LetheClientError, ProblemError
from service.cli.audit_log import read_checkpoint, read_keys
from service.cli.console import ExitStatus, Json, interrupted, note, print_result, report
from service.cli.server import Home, Key, Url, connect
from service.domain.formats import plural
from service.log.checkpoints import Checkpoint, NotVerified, VerifierKey, verify
from service.log.merkle import is_consistent, root_by_inclusion
from service.private_files import write_private

#: Responses of a Lethe whose log is shorter than what was signed, or differs; no proxy sends them.
_DENIED = ("urn:lethe:problem:not-found", "urn:lethe:problem:invalid-request")
_ANOTHER = "urn:lethe:problem:conflict"


@dataclass(frozen=True)
class Seen:
    """A checkpoint that passed all checks."""

    checkpoint: Checkpoint
    #: The signed note; keep it.
    note: str
    #: The newest earlier, smaller checkpoint that it was compared with; None without one.
    against: Checkpoint | None = None


class Contradiction(Exception):
    """The server's log contradicts what it signed before; `note` is the returned checkpoint, the evidence."""

    def __init__(self, what: str, note: str) -> None:
        super().__init__(what)
        self.what = what
        self.note = note


class Watcher:
    """Remembers the last good checkpoint and compares each new one with it."""

    def __init__(
        self, client: LetheClient, keys: Collection[VerifierKey], last: Seen | None, *, samples: int, rng: random.Random
    ) -> None:
        """`samples` random leaves of each checkpoint are verified, besides the newest new leaf."""
        self._client = client
        self._keys = keys
        self._samples = samples
        self._rng = rng
        #: None before the first round of a watcher that starts without a checkpoint.
        self.last = last

    def look(self) -> Seen:
        """Run one round; return the newest checkpoint, which becomes `last`.

        Raises Contradiction, and LetheClientError if the server does not answer.
        """
        note = self._client.log_checkpoint()
        try:
            checkpoint = verify(note, self._keys)
            if self.last is not None:
                self._compare(self.last.checkpoint, checkpoint, note)
            for index in self._places(checkpoint.size):
                self._sample(index, checkpoint, note)
        except NotVerified as error:
            raise Contradiction(error.detail, note) from None
        except ProblemError as error:
            if error.type not in _DENIED:
                raise
            # It refuses to prove what it has just signed.
            what = f"The server signed a checkpoint but refuses to prove it: {error.detail}"
            raise Contradiction(what, note) from None
        self.last = Seen(checkpoint, note, self._earlier(checkpoint))
        return self.last

    def _earlier(self, now: Checkpoint) -> Checkpoint | None:
        if self.last is None or self.last.checkpoint.size == 0:
            return None
        # The log has not grown, so the last comparison still holds.
        return self.last.checkpoint if self.last.checkpoint.size < now.size else self.last.against

    def _compare(self, before: Checkpoint, now: Checkpoint, note: str) -> None:
        if now.origin != before.origin:
            raise Contradiction(f"This is the log {now.origin}; the watched log was {before.origin}.", note)
        if now.size < before.size:
            raise Contradiction(
                f"The log has shrunk from {before.size} leaves to {now.size}: it was rolled back.", note
            )
        path: list[bytes] = []
        if 0 < before.size < now.size:
            path = _hashes(self._client.log_consistency(before.size, now.size).proof, note)
        if not is_consistent(before.size, now.size, before.root, now.root, path):
            raise Contradiction(
                f"The log of {now.size} leaves does not begin with the {before.size} leaves signed before: "
                "logged events were changed.",
                note,
            )

    def _sample(self, index: int, checkpoint: Checkpoint, note: str) -> None:
        answer = self._client.log_proof(index, checkpoint.size)
        [digest] = _hashes([answer.leaf_hash], note)
        if root_by_inclusion(index, checkpoint.size, digest, _hashes(answer.proof, note)) != checkpoint.root:
            raise Contradiction(f"Leaf {index} is not in the log of {checkpoint.size} signed leaves.", note)

    def _places(self, size: int) -> list[int]:
        """Return the leaves to sample: the newest if new, and the wanted number among all."""
        known = 0 if self.last is None else self.last.checkpoint.size
        places = {size - 1} if size > known else set()
        places.update(self._rng.sample(range(size), min(self._samples, size)))
        return sorted(places)


def _hashes(texts: Sequence[str], note: str) -> list[bytes]:
    try:
        return [bytes.fromhex(text) for text in texts]
    except ValueError:
        raise Contradiction("The server returned an invalid proof.", note) from None


def watch(
    public_key: Annotated[
        str, typer.Option("--log-key", help="Public key of the log, or a file with one key per line.")
    ],
    state: Annotated[
        Path, typer.Option(help="File that keeps the last good checkpoint; `audit verify --against` takes it.")
    ] = Path("lethe-log.checkpoint"),
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between rounds.")] = 60.0,
    samples: Annotated[int, typer.Option(min=0, help="Leaves checked for inclusion per round.")] = 5,
    once: Annotated[bool, typer.Option("--once", help="Run one round and exit.")] = False,
    metrics: Annotated[
        Path | None, typer.Option(help="File to write metrics to, for Prometheus' textfile collector.")
    ] = None,
    url: Url = None,
    key: Key = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Check every new checkpoint of a server's log against the previous one, and check a sample of its leaves.

    Exits with 1 if the log contradicts an earlier checkpoint, and saves the evidence beside the state. Outages are
    waited out; with --once, exits with 5 if the server does not answer.

    Example: [bold]./lethe audit watch --log-key log.pub --url https://lethe.example --once[/bold]
    """
    keys = read_keys(public_key)
    last = _last(state, keys)
    if last is None:
        note(f"{state} has no checkpoint yet: the first signed checkpoint is trusted.")
    figures = WatchMetrics(metrics)
    left = f"The last good checkpoint is in {state}, for the next run."
    with connect(url, key, home) as client, interrupted(lambda: left):
        watcher = Watcher(client, keys, last, samples=samples, rng=random.SystemRandom())
        while True:
            try:
                seen = watcher.look()
                # Save the signed checkpoint before the next request, whatever the server returns.
                write_private(state, seen.note)
                _report_check(client, seen)
            except Contradiction as found:
                figures.contradicted()
                evidence = state.with_name(state.name + ".contradiction")
                write_private(evidence, found.note)
                print_result({"at": datetime.now(UTC), "outcome": "contradiction", "what": found.what}, as_json)
                before = f"; the last good one is in {state}" if state.exists() else ""
                report(found.what, f"The checkpoint is in {evidence}{before}. Keep these files.")
                raise typer.Exit(ExitStatus.FAILED) from None
            except LetheClientError as error:
                if isinstance(error, ProblemError) and error.status < 500:
                    # A refusal, for example of a missing key: retrying changes nothing.
                    raise
                figures.unanswered()
                print_result({"at": datetime.now(UTC), "outcome": "unanswered", "what": error.detail}, as_json)
                report(error.detail, error.remedy)
                if once:
                    raise typer.Exit(ExitStatus.UNREACHABLE) from None
            else:
                figures.good(seen)
                now, size = datetime.now(UTC), seen.checkpoint.size
                against = None if seen.against is None else seen.against.size
                print_result({"at": now, "outcome": "good", "leaves": size, "against": against}, as_json)
                compared = "no earlier checkpoint to compare" if against is None else f"the first {against} unchanged"
                note(f"{now:%Y-%m-%d %H:%M:%S} UTC: good, {plural(size, 'leaf', 'leaves')}; {compared}.")
                if once:
                    return
            time.sleep(interval)


def _report_check(client: LetheClient, seen: Seen) -> None:
    """Report the comparison to the server. A server that no longer has these roots contradicts itself."""
    if seen.against is None:
        return
    try:
        client.log_checked(
            seen.checkpoint.size,
            seen.checkpoint.root.hex(),
            against_size=seen.against.size,
            against_root=seen.against.root.hex(),
        )
    except ProblemError as error:
        if error.type != _ANOTHER:
            raise
        raise Contradiction(error.detail, seen.note) from None


def _last(state: Path, keys: list[VerifierKey]) -> Seen | None:
    if not state.exists():
        return None
    return Seen(read_checkpoint(state, keys), state.read_text(encoding="utf-8"))


class WatchMetrics:
    """Metrics of the watch, written to a file if one is set."""

    def __init__(self, path: Path | None) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self._path = path
        self._registry = CollectorRegistry()
        self._consistent = Gauge(
            "lethe_watch_consistent", "1 if the log extends its earlier checkpoints, else 0.", registry=self._registry
        )
        self._size = Gauge("lethe_watch_log_size", "Leaves of the last good checkpoint.", registry=self._registry)
        self._last = Gauge(
            "lethe_watch_last_good_timestamp_seconds",
            "Time of the last round without findings.",
            registry=self._registry,
        )
        self._unanswered = Counter(
            "lethe_watch_unanswered_total", "Rounds without an answer from the server.", registry=self._registry
        )
        self._consistent.set(1)

    def good(self, seen: Seen) -> None:
        """Record a round without findings."""
        self._size.set(seen.checkpoint.size)
        self._last.set_to_current_time()
        self._publish()

    def unanswered(self) -> None:
        """Record a round without an answer."""
        self._unanswered.inc()
        self._publish()

    def contradicted(self) -> None:
        """Record a contradiction."""
        self._consistent.set(0)
        self._publish()

    def _publish(self) -> None:
        from prometheus_client import write_to_textfile

        if self._path is not None:
            write_to_textfile(str(self._path), self._registry)
