"""Publications are counted, whatever moments store and database are restored to."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from model_store.store import Store
from projector.certified.publication import Promise
from service import failure_points
from service.domain.states import Cause
from service.failure_points import FailurePoint
from service.settings import Settings
from tests.support.everyday import everyday
from tests.support.service.bodies import node_body
from tests.support.service.db_harness import until
from tests.support.service.repairs import Crash, crash, model_of
from tests.support.service.running import Lethe
from tests.support.service.sites import Site, site, trained

pytestmark = pytest.mark.ci

__all__ = ["site", "trained"]

PROMISE = {"repair": "always", "certify": "1,1e-4", "certify_publications": 100}
#: The same for `recover`, on its command line.
RECOVER_WITH = ("--repair", "always", "--certify", "1,1e-4", "--certify-publications", "100")


@pytest.fixture
def published(site: Site) -> Site:
    site.settings = Settings(**site.settings.model_dump() | PROMISE)
    return site


def model(site: Site) -> dict[str, Any]:
    """Return the served model after a start."""
    found: dict[str, Any] = {}

    async def look(lethe: Lethe) -> None:
        found.update(await model_of(lethe))

    site.serve(look)
    return found


def model_once(site: Site, version: int) -> dict[str, Any]:
    """Return the served model after a start that makes its own version with noise."""
    found: dict[str, Any] = {}

    async def look(lethe: Lethe) -> None:
        async def is_served() -> bool:
            found.update(await model_of(lethe))
            # Between the two, no model may be served.
            return bool(found.get("version") == version)

        await until(is_served)

    site.serve(look)
    return found


@pytest.mark.slow
def test_a_recovery_counts_what_only_one_of_the_two_knows(published: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    published.delete(node_body("3"))
    earlier = published.moment()
    last = published.delete(node_body("4"), node_body("5"))
    published.restore_store(earlier)
    for name, value in PROMISE.items():
        monkeypatch.setenv(f"LETHE_{name.upper()}", str(value))
    ran = published.recover()
    assert ran.status == 0, ran.stderr
    served = model(published)
    assert served["version"] > last["version"]
    assert served["noise"]["used"] == pytest.approx(served["version"] - 1)
    published.verified_leaves()


def test_a_recovery_takes_no_number_that_neither_of_the_two_knows(
    published: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.delete(node_body("3"))
    of_store = published.moment()
    published.delete(node_body("4"))
    of_database = published.moment()
    last = published.delete(node_body("5"), node_body("6"))["version"]
    published.restore_store(of_store)
    published.restore_database(of_database)
    for name, value in PROMISE.items():
        monkeypatch.setenv(f"LETHE_{name.upper()}", str(value))
    ran = published.recover()
    assert ran.status == 0, ran.stderr
    served = model(published)
    # A reused number would be published twice, but counted once.
    assert (served["version"], served["noise"]["used"]) == (last + 1, pytest.approx(last))
    published.verified_leaves()


@pytest.mark.slow
@pytest.mark.parametrize("older", everyday(["store", "database"], "store"))
def test_a_recovery_is_refused_until_it_is_given_the_promise(site: Site, older: str) -> None:
    site.settings = Settings(**site.settings.model_dump() | {"repair": "always"})
    site.delete(node_body("3"))
    without_noise = site.moment()
    site.settings = Settings(**site.settings.model_dump() | PROMISE)
    assert model_once(site, version=2)["noise"] is not None
    # Then only the other one knows of noise.
    (site.restore_store if older == "store" else site.restore_database)(without_noise)
    before = site.files()
    ran = site.recover("--repair", "always")
    assert ran.status == 2
    said = " ".join(ran.stderr.split())
    assert "was published with noise" in said
    assert "--certify 1.0,0.0001 --certify-publications 100" in said
    assert "LETHE_CERTIFY" in said
    assert (site.files(), site.recoveries()) == (before, [])
    ran = site.recover(*RECOVER_WITH)
    assert ran.status == 0, ran.stderr
    store = Store.open(site.model)
    publication = store.read_version(store.current()).publication
    assert publication is not None
    assert publication.promise == Promise(1, 1e-4, 100)
    served, [recovery] = model(site), site.recoveries()
    assert (served["version"], served["noise"]["epsilon"]) == (recovery.version.number, 1)
    site.verified_leaves()


@pytest.mark.slow
def test_a_recovery_that_would_exceed_the_promise_is_refused(published: Site) -> None:
    published.settings = Settings(**published.settings.model_dump() | {"certify_publications": 3})
    published.delete(node_body("3"))
    earlier = published.moment()
    assert published.delete(node_body("4"), node_body("5"))["noise"]["used"] == pytest.approx(3)
    published.restore_database(earlier)
    before = published.files()
    ran = published.recover("--repair", "always", "--certify", "1,1e-4", "--certify-publications", "3")
    assert ran.status == 1
    assert "allows no further version" in " ".join(ran.stderr.split())
    assert (published.files(), published.recoveries()) == (before, [])
    ran = published.recover("--repair", "always", "--certify", "2,1e-4", "--certify-publications", "100")
    assert ran.status == 0, ran.stderr
    assert published.recoveries()[0].version.publication_epsilon == 2


@pytest.mark.slow
def test_a_crash_after_the_commit_is_gone_on_with_whatever_numbers_were_passed_over(
    published: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted: dict[str, Any] = {}

    def crashes(wanted: FailurePoint, causes: set[Cause], work: Callable[[Lethe], Awaitable[None]]) -> None:
        """Run `work` with a service that crashes at that point of a version with one of the causes."""

        def reached(point: FailurePoint, of: Cause | None = None) -> None:
            if point is wanted and of in causes:
                crash()

        with monkeypatch.context() as patch:
            patch.setattr(failure_points, "reached", reached)
            with pytest.raises(Crash):
                published.serve(work)

    async def until_it_crashes(lethe: Lethe) -> None:
        await until(lethe.has_failed)
        raise lethe.failures[0]

    async def delete(lethe: Lethe) -> None:
        accepted.update(await lethe.delete("3"))
        await until_it_crashes(lethe)

    async def completed(lethe: Lethe) -> None:
        await lethe.completed(accepted)

    crashes(FailurePoint.WRITTEN, {Cause.BATCH}, delete)
    # The next start skips its number, 2, since that may have been published.
    crashes(FailurePoint.COMMITTED, set(Cause), until_it_crashes)
    store = Store.open(published.model)
    [later] = [ref for ref in store.versions() if ref.version == 3]
    assert store.current().version == 1
    aside = published.settings.home / "aside"
    store.folder_of(later).rename(aside)
    published.refused("restored from an older backup")
    aside.rename(store.folder_of(later))
    published.serve(completed)
    published.verified_leaves()


@pytest.mark.slow
def test_whom_lost_versions_deleted_is_counted_for(published: Site) -> None:
    model(published)
    earlier = published.moment()
    published.delete(node_body("4"), node_body("5"))
    published.restore_store(earlier)
    published.restore_database(earlier)
    served = published.delete(node_body("6"))
    # Versions 2 and 3, which deleted nodes; 4, which skips them; and 5.
    assert (served["version"], served["noise"]["used"]) == (5, pytest.approx(4))
    published.verified_leaves()
