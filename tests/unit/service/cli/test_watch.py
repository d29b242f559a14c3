"""The watcher against a growing log, and against dishonest ones."""

import random
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from lethe_client import LetheClient
from service.cli.audit_watch import Contradiction, Seen, Watcher
from service.log.checkpoints import Checkpoint, Signer, VerifierKey, sign
from service.log.merkle import leaf_hash
from tests.support.evidence.rfc6962 import mth, path, subproof

OWN, OTHER = Signer("lethe/0123", bytes(32)), Signer("lethe/0123", b"1" * 32)


@dataclass
class Answer:
    proof: list[str]
    leaf_hash: str = ""


@dataclass
class FakeLog:
    """A server, as honest as its leaves."""

    leaves: list[bytes] = field(default_factory=list)
    signer: Signer = OWN
    sampled: list[int] = field(default_factory=list)

    def log_checkpoint(self) -> str:
        return sign(Checkpoint(self.signer.public.name, len(self.leaves), mth(self.leaves)), [self.signer])

    def log_consistency(self, old: int, new: int) -> Answer:
        return Answer([digest.hex() for digest in subproof(old, self.leaves[:new], True)])

    def log_proof(self, index: int, size: int) -> Answer:
        self.sampled.append(index)
        proof = [digest.hex() for digest in path(index, self.leaves[:size])]
        return Answer(proof, leaf_hash(self.leaves[index]).hex())

    def grow(self, count: int) -> None:
        self.leaves += [f"leaf {len(self.leaves) + number}".encode() for number in range(count)]


def watcher(log: FakeLog, last: Seen | None = None, *others: VerifierKey) -> Watcher:
    return Watcher(cast(LetheClient, log), [OWN.public, *others], last, samples=3, rng=random.Random(0))


def test_a_log_that_grows_is_followed_and_its_newest_leaf_is_always_looked_at() -> None:
    log = FakeLog()
    eye = watcher(log)
    assert eye.look().checkpoint.size == 0
    against: list[int | None] = []
    for count in (1, 0, 5, 0, 1, 17):
        log.grow(count)
        log.sampled.clear()
        assert eye.look().checkpoint == Checkpoint("lethe/0123", len(log.leaves), mth(log.leaves))
        assert len(log.sampled) >= min(3, len(log.leaves))
        assert count == 0 or len(log.leaves) - 1 in log.sampled
        assert eye.last is not None
        against.append(None if eye.last.against is None else eye.last.against.size)
    # Its last comparison with an older one: never with itself, nor with the empty log.
    assert against == [None, None, 1, 1, 6, 7]


def test_a_watcher_goes_on_from_the_checkpoint_it_kept() -> None:
    log = FakeLog()
    log.grow(5)
    seen = watcher(log).look()
    log.leaves[2] = b"rewritten"
    log.grow(3)
    with pytest.raises(Contradiction, match="does not begin with the 5"):
        watcher(log, seen).look()


@pytest.mark.parametrize("grown", [0, 1, 8])
def test_a_rewritten_leaf_is_noticed(grown: int) -> None:
    log = FakeLog()
    log.grow(11)
    eye = watcher(log)
    before = eye.look()
    log.leaves[4] = b"rewritten"
    log.grow(grown)
    with pytest.raises(Contradiction, match="does not begin with the 11") as found:
        eye.look()
    assert found.value.note == log.log_checkpoint()
    assert eye.last == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"leaves": [b"leaf 0"]}, "shrunk from 2 leaves to 1"), ({"signer": OTHER}, "not signed by a trusted key")],
    ids=["shorter", "another key"],
)
def test_a_log_that_shrinks_and_one_with_another_key_are_noticed(changes: dict[str, Any], said: str) -> None:
    log = FakeLog()
    log.grow(2)
    eye = watcher(log)
    eye.look()
    vars(log).update(changes)
    with pytest.raises(Contradiction, match=said):
        eye.look()


def test_another_log_signed_by_the_same_key_is_noticed() -> None:
    log = FakeLog()
    log.grow(3)
    eye = watcher(log)
    eye.look()
    log.signer = Signer("lethe/4567", bytes(32))
    with pytest.raises(Contradiction, match="This is the log"):
        Watcher(
            cast(LetheClient, log), [OWN.public, log.signer.public], eye.last, samples=0, rng=random.Random(0)
        ).look()


def test_a_leaf_that_is_not_in_the_signed_log_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FakeLog()
    log.grow(4)
    honest = log.log_proof

    def forged(index: int, size: int) -> Answer:
        return Answer(honest(index, size).proof, leaf_hash(b"forged").hex())

    monkeypatch.setattr(log, "log_proof", forged)
    with pytest.raises(Contradiction, match=r"Leaf \d is not in the log"):
        watcher(log).look()


def test_a_proof_that_is_none_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FakeLog()
    log.grow(4)
    monkeypatch.setattr(log, "log_proof", lambda index, size: Answer(["not hex"], "00"))
    with pytest.raises(Contradiction, match="an invalid proof"):
        watcher(log).look()
