"""Watch a log from outside: each checkpoint must extend the last and contain the sampled leaves."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.log.checkpoints import Checkpoint, NotVerified, VerifierKey, verify
from service.log.merkle import is_consistent, root_by_inclusion


class ConsistencyProof(Protocol):
    """Response of `GET /log/consistency`."""

    @property
    def proof(self) -> Sequence[str]:
        """Hashes in hex."""


class InclusionProof(Protocol):
    """Response of `GET /log/proof/{index}`."""

    @property
    def leaf_hash(self) -> str:
        """Hex."""

    @property
    def proof(self) -> Sequence[str]:
        """Hashes in hex."""


class Log(Protocol):
    """A server's log; `lethe_client.LetheClient` implements it."""

    def log_checkpoint(self) -> str:
        """Return the newest checkpoint, a signed note."""

    def log_consistency(self, old: int, new: int) -> ConsistencyProof:
        """Return the proof that the first `old` leaves are unchanged in the first `new`."""

    def log_proof(self, index: int, size: int) -> InclusionProof:
        """Return the proof that the first `size` leaves contain a leaf."""


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
        self, log: Log, keys: Collection[VerifierKey], last: Seen | None, *, samples: int, rng: random.Random
    ) -> None:
        """`samples` random leaves of each checkpoint are verified, besides the newest new leaf."""
        self._log = log
        self._keys = keys
        self._samples = samples
        self._rng = rng
        #: None before the first round of a watcher that starts without a checkpoint.
        self.last = last
        #: Checkpoint of the current round; None before the server returned it.
        self.answered: str | None = None

    def look(self) -> Seen:
        """Run one round; return the newest checkpoint, which becomes `last`.

        Raises Contradiction, and any error of the log's own when it does not answer.
        """
        self.answered = None
        self.answered = note = self._log.log_checkpoint()
        try:
            checkpoint = verify(note, self._keys)
        except NotVerified as error:
            raise Contradiction(error.detail, note) from None
        if self.last is not None:
            self._compare(self.last.checkpoint, checkpoint, note)
        for index in self._places(checkpoint.size):
            self._sample(index, checkpoint, note)
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
            path = _hashes(self._log.log_consistency(before.size, now.size).proof, note)
        if not is_consistent(before.size, now.size, before.root, now.root, path):
            raise Contradiction(
                f"The log of {now.size} leaves does not begin with the {before.size} leaves signed before: "
                "logged events were changed.",
                note,
            )

    def _sample(self, index: int, checkpoint: Checkpoint, note: str) -> None:
        answer = self._log.log_proof(index, checkpoint.size)
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
