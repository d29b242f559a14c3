"""Canaries: synthetic nodes that let anyone verify that the model forgets."""

import secrets
from dataclasses import dataclass

#: Prefix of the external ids of canaries, reserved for them.
PREFIX = "lethe-canary-"


@dataclass(frozen=True)
class Canaries:
    """The canaries of one model: cohorts of nodes, each with a feature column of its own."""

    #: Number of cohorts at training, at least 1, numbered from 1.
    cohorts: int
    #: Nodes in each cohort, at least 1.
    nodes: int
    #: The feature column of cohort 1; cohort k has column `first_column` + k - 1.
    first_column: int
    #: Unique to one training run. Ids deleted from one model must not return with the next, so a newly trained model
    #: needs cohort ids that were never deleted.
    tag: str

    def cohort_ids(self, cohort: int) -> tuple[str, ...]:
        """Return the external ids of a cohort, `lethe-canary-<tag>-<cohort>-<i>`, both numbered from 1.

        Raises ValueError for a cohort that the model never had.
        """
        self._check(cohort)
        return tuple(f"{PREFIX}{self.tag}-{cohort}-{node}" for node in range(1, self.nodes + 1))

    def column(self, cohort: int) -> int:
        """Return the feature column of a cohort. Raises ValueError for a cohort that the model never had."""
        self._check(cohort)
        return self.first_column + cohort - 1

    @property
    def ids(self) -> tuple[str, ...]:
        """External ids of all canaries, cohort by cohort."""
        return tuple(name for cohort in range(1, self.cohorts + 1) for name in self.cohort_ids(cohort))

    @property
    def columns(self) -> tuple[int, ...]:
        """The feature columns of all cohorts."""
        return tuple(range(self.first_column, self.first_column + self.cohorts))

    def _check(self, cohort: int) -> None:
        if not 1 <= cohort <= self.cohorts:
            raise ValueError(f"cohort {cohort} of {self.cohorts}")


def new_tag() -> str:
    """Return a unique tag of 8 hexadecimal digits. It ignores the seed, which training runs may share."""
    return secrets.token_hex(4)
