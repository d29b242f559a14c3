"""What is promised of published weights, the noise that keeps it, and the publication of one version: records."""

import hashlib
import math
import secrets
from dataclasses import dataclass

#: Bytes of the secret.
SECRET_BYTES = 32
_SALT = b"lethe/commitment-salt"


@dataclass(frozen=True)
class Promise:
    """What is promised to whoever has been deleted: K publications after it are together (epsilon, delta)-hidden.

    For every set S of what they may be, the probabilities p of unlearned and q of retrained weights obey
    p(S) <= e^epsilon q(S) + delta and the reverse.
    """

    epsilon: float
    delta: float
    #: K.
    publications: int


@dataclass(frozen=True)
class Mechanism:
    """How weights are published: each is rounded to a multiple of `step`, and normal noise in whole steps is added."""

    #: Weights farther than this from those of retraining are not published.
    cap: float
    #: p C, how many numbers W has.
    weights: int
    #: Delta: how far apart the rounded weights of two services can lie.
    sensitivity: float
    #: The noise's standard deviation is sigma = 2^bits steps.
    sigma: float
    bits: int
    #: The mu of all K publications together.
    budget: float

    @property
    def step(self) -> float:
        """g, between neighbours on the grid."""
        return math.ldexp(self.sigma, -self.bits)

    @property
    def mu(self) -> float:
        """One publication is mu-GDP."""
        return self.sensitivity / self.sigma


@dataclass(frozen=True)
class Publication:
    """How one version is published: drawn once, kept with its weights, and gone with them.

    It is kept whole, and not made again from the promise: the same secret with other noise would tell the weights.
    """

    promise: Promise
    mechanism: Mechanism
    secret: bytes

    @classmethod
    def drawn(cls, promise: Promise, mechanism: Mechanism) -> "Publication":
        """A new one, its secret from the system's generator."""
        return cls(promise, mechanism, secrets.token_bytes(SECRET_BYTES))

    @property
    def commitment_salt(self) -> bytes:
        """What commitments to this version's weights and figures are salted with: SHA-256, which leads back to nothing.

        Whoever has it can open them, and cannot take the noise off.
        """
        return hashlib.sha256(_SALT + self.secret).digest()
