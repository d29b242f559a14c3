"""What was published is counted, whatever moment store and database are brought back to."""

from typing import Any

import pytest

from service.settings import Settings
from tests.support.service.bodies import node_body
from tests.support.service.db_harness import until
from tests.support.service.repairs import model_of
from tests.support.service.running import Lethe
from tests.support.service.sites import Site, site, trained

__all__ = ["site", "trained"]

PROMISE = {"repair": "always", "certify": "1,1e-4", "certify_publications": 100}


@pytest.fixture
def published(site: Site) -> Site:
    site.settings = Settings(**site.settings.model_dump() | PROMISE)
    return site


def model(site: Site) -> dict[str, Any]:
    """What is served, after a start."""
    found: dict[str, Any] = {}

    async def look(lethe: Lethe) -> None:
        found.update(await model_of(lethe))

    site.serve(look)
    return found


def test_versions_that_a_restored_database_does_not_know_are_counted(published: Site) -> None:
    published.delete(node_body("3"))
    earlier = published.moment()
    for node in ("4", "5", "6"):
        published.delete(node_body(node))
    assert (model(published)["version"], model(published)["noise"]["used"]) == (5, pytest.approx(4))
    published.restore_store(earlier)
    published.restore_database(earlier)
    published.delete(node_body("7"))
    told = model(published)
    # Versions 2 to 5, of which the database knows the first; 6, which passes over them; and 7.
    assert (told["version"], told["noise"]["used"]) == (7, pytest.approx(6))
    published.verified_leaves()


def test_a_recovery_counts_what_only_one_of_the_two_knows(published: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    published.delete(node_body("3"))
    earlier = published.moment()
    published.delete(node_body("4"), node_body("5"))
    last = model(published)
    published.restore_store(earlier)
    published.refused("restored from an older backup")
    for name, value in PROMISE.items():
        monkeypatch.setenv(f"LETHE_{name.upper()}", str(value))
    ran = published.recover()
    assert ran.status == 0, ran.stderr
    told = model(published)
    assert told["version"] > last["version"]
    assert told["noise"]["used"] == pytest.approx(told["version"] - 1)
    published.verified_leaves()


def test_a_recovery_takes_no_number_that_neither_of_the_two_knows(
    published: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.delete(node_body("3"))
    of_store = published.moment()
    published.delete(node_body("4"))
    of_database = published.moment()
    published.delete(node_body("5"), node_body("6"))
    last = model(published)["version"]
    published.restore_store(of_store)
    published.restore_database(of_database)
    for name, value in PROMISE.items():
        monkeypatch.setenv(f"LETHE_{name.upper()}", str(value))
    ran = published.recover()
    assert ran.status == 0, ran.stderr
    told = model(published)
    # A number that was used before would be published twice, and counted once.
    assert (told["version"], told["noise"]["used"]) == (last + 1, pytest.approx(last))
    published.verified_leaves()


def test_whom_lost_versions_deleted_is_counted_for(published: Site) -> None:
    model(published)
    earlier = published.moment()
    for node in ("4", "5"):
        published.delete(node_body(node))
    published.restore_store(earlier)
    published.restore_database(earlier)

    async def look(lethe: Lethe) -> None:
        async def has_passed() -> bool:
            return bool((await model_of(lethe))["version"] == 4)

        await until(has_passed)
        # Versions 2 and 3, which deleted somebody, and 4, which passes over them.
        assert (await model_of(lethe))["noise"]["used"] == pytest.approx(3)

    published.serve(look)
