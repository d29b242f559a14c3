"""Records of a privacy promise, the noise that keeps it and the publication of one version."""

import hashlib
import math
import secrets
from dataclasses import dataclass

#: Bytes of the secret.
SECRET_BYTES = 32
_SALT = b"lethe/commitment-salt"


@dataclass(frozen=True)
class Promise:
    """The promise to every deleted user: the K publications after the deletion are together (epsilon, delta)-hidden.

    For every set S of possible publications, the probabilities p from unlearned and q from retrained weights obey p(S)
    <= e^epsilon q(S) + delta and the reverse.
    """

    epsilon: float
    delta: float
    #: K.
    publications: int


@dataclass(frozen=True)
class Mechanism:
    """How weights are published: each is rounded to a multiple of `step`, then gets normal noise in whole steps."""

    #: Weights farther than this from the retrained weights are not published.
    cap: float
    #: p C, the number of weights.
    weights: int
    #: Delta: the largest distance between the rounded weights of two services.
    sensitivity: float
    #: Standard deviation of the noise: sigma = 2^bits steps.
    sigma: float
    bits: int
    #: mu of all K publications together.
    budget: float

    @property
    def step(self) -> float:
        """g, the grid spacing."""
        return math.ldexp(self.sigma, -self.bits)

    @property
    def mu(self) -> float:
        """One publication is mu-GDP."""
        return self.sensitivity / self.sigma


@dataclass(frozen=True)
class Publication:
    """How one version is published: drawn once, stored with its weights and erased with them.

    It is stored whole rather than derived again from the promise: the same secret with other noise would reveal the
    weights.
    """

    promise: Promise
    mechanism: Mechanism
    secret: bytes

    @classmethod
    def drawn(cls, promise: Promise, mechanism: Mechanism) -> "Publication":
        """Return a new publication with a secret from the system's generator."""
        return cls(promise, mechanism, secrets.token_bytes(SECRET_BYTES))

    @property
    def commitment_salt(self) -> bytes:
        """Return the salt of commitments to this version's weights and figures: a one-way SHA-256 of the secret.

        Its holder can open the commitments but cannot remove the noise.
        """
        return hashlib.sha256(_SALT + self.secret).digest()
