"""Names of the cohorts of canaries."""

import pytest

from projector.forgetting.canaries import Canaries, new_tag

CANARIES = Canaries(cohorts=3, nodes=2, first_column=7, tag="0a1b2c3d")


def test_every_cohort_has_ids_and_a_column_of_its_own() -> None:
    assert CANARIES.cohort_ids(1) == ("lethe-canary-0a1b2c3d-1-1", "lethe-canary-0a1b2c3d-1-2")
    ids = [name for cohort in (1, 2, 3) for name in CANARIES.cohort_ids(cohort)]
    assert len(set(ids)) == 6
    assert [CANARIES.column(cohort) for cohort in (1, 2, 3)] == [7, 8, 9]


@pytest.mark.parametrize("cohort", [-1, 0, 4])
def test_a_cohort_that_the_model_never_had_is_no_cohort(cohort: int) -> None:
    with pytest.raises(ValueError, match="of 3"):
        CANARIES.cohort_ids(cohort)
    with pytest.raises(ValueError, match="of 3"):
        CANARIES.column(cohort)


def test_no_two_trainings_share_a_tag() -> None:
    assert len({new_tag() for _ in range(50)}) == 50
