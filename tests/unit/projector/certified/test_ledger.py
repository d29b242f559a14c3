"""The ledger never understates what publications have revealed, and stops the one that would reveal too much."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.certified.ledger import Ledger
from projector.certified.mechanism import calibrate
from projector.certified.publication import Mechanism, Promise
from projector.errors import PromiseError
from tests.support.everyday import everyday


def planned(publications: int) -> Mechanism:
    return calibrate(Promise(1.0, 1e-4, publications), 200.0, 1_000, 1e-8)


@pytest.mark.parametrize("count", everyday([10_000, 100_000], 10_000))
def test_thousands_of_publications_are_those_of_the_closed_form(count: int) -> None:
    """mu sqrt(K), to 1e-12 and never below; the K planned are allowed and no more."""
    mechanism, ledger = planned(count), Ledger()
    for version in range(1, count + 1):
        ledger.add(version, mechanism, oldest_deletion=1)
        if version in (count // 10 * 9 - 1, count // 10 * 9 + 1):
            assert ledger.since(1, mechanism.budget).nearly_used is (version > count // 10 * 9)
    for deletion in (1, 2, count // 2 + 1, count):
        spent = ledger.since(deletion, mechanism.budget)
        assert spent.publications == count + 1 - deletion
        exact = Fraction(mechanism.mu) ** 2 * spent.publications
        assert Fraction(spent.mu) ** 2 >= exact
        assert spent.mu == pytest.approx(mechanism.mu * math.sqrt(spent.publications), rel=1e-12)
        assert spent.share == pytest.approx(spent.publications / count, rel=1e-9)
    with pytest.raises(PromiseError, match="than promised"):
        ledger.add(count + 1, mechanism, oldest_deletion=1)
    ledger.add(count + 1, mechanism, oldest_deletion=2)


@given(plans=st.lists(st.integers(1, 10**6), min_size=1, max_size=40), since=st.integers(1, 50))
def test_publications_with_different_noise_add_up_by_squares(plans: list[int], since: int) -> None:
    ledger, made = Ledger(), [planned(plan) for plan in plans]
    for version, mechanism in enumerate(made, start=1):
        ledger.add(version, replace(mechanism, budget=1e6), oldest_deletion=version)
    exact = sum((Fraction(mechanism.mu) ** 2 for mechanism in made[since - 1 :]), Fraction())
    spent = ledger.since(since, 1.0)
    assert exact <= Fraction(spent.mu) ** 2 <= exact * (1 + Fraction(1, 10**12))
    assert spent.share == pytest.approx(float(exact), rel=1e-12)


def test_a_version_published_again_is_counted_once() -> None:
    mechanism, ledger = planned(2), Ledger()
    for version in (1, 1, 2, 2, 1):
        ledger.add(version, mechanism, oldest_deletion=1)
    assert ledger.since(1, mechanism.budget).publications == 2
    with pytest.raises(PromiseError, match="not what was counted"):
        ledger.add(2, planned(3), oldest_deletion=1)
    with pytest.raises(PromiseError, match="not what was counted"):
        ledger.add(0, mechanism, oldest_deletion=1)


def test_a_refused_publication_is_not_counted() -> None:
    mechanism, ledger = planned(1), Ledger()
    ledger.add(1, mechanism, oldest_deletion=1)
    with pytest.raises(PromiseError):
        ledger.add(2, mechanism, oldest_deletion=1)
    assert ledger.since(1, mechanism.budget).publications == 1
    assert ledger.since(2, mechanism.budget).mu == 0.0


def test_more_publications_planned_in_time_leave_more_to_come() -> None:
    """After 90 of 100, publications of a plan of 400 use a quarter each: 40 follow instead of 10."""
    ledger, first, second = Ledger(), planned(100), planned(400)
    for version in range(1, 91):
        ledger.add(version, first, oldest_deletion=1)
    for version in range(91, 91 + 39):
        ledger.add(version, second, oldest_deletion=1)
    assert ledger.since(1, second.budget).share == pytest.approx(0.9 + 39 / 400)


def test_it_can_be_asked_while_another_thread_counts() -> None:
    ledger = Ledger()

    class Asking(list[int]):
        def append(self, version: int) -> None:
            super().append(version)
            ledger.since(2**63 - 1, 1.0)

    ledger._versions, ledger._costs, ledger._before = Asking(), Asking(), Asking([0])
    ledger.record(1, 0.5)
    assert ledger.since(1, 1.0).publications == 1
