"""Canaries: made-up nodes by which anyone can see that this model forgets."""

import secrets
from dataclasses import dataclass

#: How the external ids of canaries begin; no node of a dataset may be called so.
PREFIX = "lethe-canary-"


@dataclass(frozen=True)
class Canaries:
    """The canaries of one model: cohorts of nodes, each with a feature column that no other node carries."""

    #: How many cohorts there were at training, at least 1; they are numbered from 1.
    cohorts: int
    #: Nodes of each cohort, at least 1.
    nodes: int
    #: The feature column of cohort 1; cohort k has column `first_column` + k - 1.
    first_column: int
    #: Tells the canaries of one training from those of all others. What was deleted from one model must not come back
    #: with the next, so the cohorts of a newly trained model need ids that have never been deleted.
    tag: str

    def cohort_ids(self, cohort: int) -> tuple[str, ...]:
        """External ids of the nodes of a cohort, `lethe-canary-<tag>-<cohort>-<i>`, both numbered from 1.

        Raises ValueError for a cohort that the model never had.
        """
        self._check(cohort)
        return tuple(f"{PREFIX}{self.tag}-{cohort}-{node}" for node in range(1, self.nodes + 1))

    def column(self, cohort: int) -> int:
        """The feature column of a cohort; ValueError for one that the model never had."""
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
    """A tag that no other training has, 8 hexadecimal digits. It is not drawn from the seed, which trainings share."""
    return secrets.token_hex(4)
