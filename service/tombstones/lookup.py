"""What was deleted, asked for by external id."""

from collections.abc import Sequence
from uuid import UUID

from service.db.engine import Engine
from service.db.transactions import transaction
from service.domain.kinds import Part, Target
from service.offload import offload
from service.tombstones.repository import TombstoneRepository
from service.vault.keyring import Keyring


class TombstoneLookup:
    """What was deleted, and by which request: looked up by keyed hash, under every tombstone key."""

    def __init__(self, engine: Engine, keyring: Keyring, model: str) -> None:
        self._engine = engine
        self._keyring = keyring
        self._model = model

    async def find(self, part: Part, targets: Sequence[Target]) -> dict[Target, UUID | None]:
        """Each of `targets` of which a request deleted this part, with that request. Raises Unavailable.

        None stands for one that the database, restored from an older backup, does not have.
        """
        if not targets:
            return {}
        by_hash = await offload(len(targets), lambda: self._keyring.tombstone_hashes(self._model, part, targets))
        async with transaction(self._engine) as connection:
            found = await TombstoneRepository(connection).find(by_hash)
        return {by_hash[digest]: request_id for digest, request_id in found.items()}

    async def deleted_nodes(self, nodes: Sequence[str]) -> dict[str, UUID | None]:
        """Each of `nodes` that was deleted, as `find`. Raises Unavailable."""
        found = await self.find(Part.NODES, nodes)
        return {node: request_id for node, request_id in found.items() if isinstance(node, str)}
