"""Whether a recovery may publish weights as they are."""

from model_store.store import Store
from service.db.engine import Connection
from service.errors import ConfigurationError
from service.versions.versions import VersionRepository


async def require_unpromised(connection: Connection, store: Store) -> None:
    """Raises ConfigurationError when the store's version, or the database's newest, was published with noise.

    Of both: an older backup of one of them may know nothing of it.
    """
    name, current = store.manifest.name, store.current()
    promises: dict[int, tuple[float | None, float | None, int | None]] = {}
    publication = store.read_version(current).publication
    if publication is not None:
        promise = publication.promise
        promises[current.version] = (promise.epsilon, promise.delta, promise.publications)
    for newest in await VersionRepository(connection).latest(name, limit=1):
        if newest.publication_mu is not None:
            promises[newest.number] = (
                newest.publication_epsilon, newest.publication_delta, newest.publications_planned,
            )  # fmt: skip
    if not promises:
        return
    version = max(promises)
    epsilon, delta, planned = promises[version]
    raise ConfigurationError(
        f"Version {version} of model {name!r} was published with noise (epsilon {epsilon}, delta {delta}, "
        f"{planned} versions planned), and this recovery would publish the weights as they are.",
        f"Nothing was changed. Give --certify {epsilon},{delta} --certify-publications {planned}, and "
        "--repair-tolerance if `serve` has it; or set LETHE_CERTIFY, LETHE_CERTIFY_PUBLICATIONS and "
        "LETHE_REPAIR_TOLERANCE as for `serve`.",
    )
