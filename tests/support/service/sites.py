"""A LETHE_HOME and its database, copied, restored to another moment and recovered."""

import asyncio
import hashlib
import json
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import structlog

from service.access.api_keys import ApiKeyRepository
from service.access.keyring import Keyring
from service.access.own_slots import OwnSlots
from service.db.engine import create_engine
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import Targets
from service.domain.scopes import Scope
from service.domain.versions import Recovery
from service.errors import StateMismatch
from service.log.canonical import parse_canonical
from service.log.events import LogRepository
from service.requests.intake import Intake, NewRequest
from service.settings import Settings
from service.unlearner.causes import RecoveryRepository
from tests.support.clients.command_line import CommandLine
from tests.support.service.bodies import edge_body, features_body, node_body
from tests.support.service.db_harness import until
from tests.support.service.kinds_world import CHANNEL, World, closest, make_model
from tests.support.service.repairs import model_of
from tests.support.service.running import Lethe, running, settings_of

TOLERANCE = 1e-9


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "model"
    make_model(folder)
    return folder


@dataclass
class Site:
    """A LETHE_HOME, its database, and copies of both from earlier moments."""

    settings: Settings
    postgres_url: str
    world: World
    recover: Callable[..., Any]
    command: Callable[..., Any]
    copies: int = 0

    @property
    def model(self) -> Path:
        return self.settings.model_dir

    @property
    def database(self) -> str:
        assert self.settings.database_url is not None
        return self.settings.database_url.rpartition("/")[2]

    def serve(self, work: Callable[[Lethe], Awaitable[None]]) -> None:
        """Run `work` with a ready service, then stop it."""

        async def serving() -> None:
            async with running(self.settings) as lethe:

                async def is_decided() -> bool:
                    return bool(lethe.failures) or await lethe.is_ready()

                await until(is_decided)
                if lethe.failures:
                    raise lethe.failures[0]
                await work(lethe)

        asyncio.run(serving())

    def delete(self, *bodies: Mapping[str, Any]) -> dict[str, Any]:
        """Delete all of it, one after the other, record it in `world`, and return the model then served."""
        model: dict[str, Any] = {}

        async def work(lethe: Lethe) -> None:
            for body in bodies:
                await lethe.completed((await lethe.client.post("/deletions", json=body)).json())
            model.update(await model_of(lethe))

        self.serve(work)
        for body in bodies:
            self.world.edges |= {(a, b) for a, b in body.get("edges", ())}
            (self.world.nodes if body["kind"] == "node" else self.world.features).update(body.get("nodes", ()))
        return model

    def queue(self, node: str) -> UUID:
        """Accept the deletion of a node in a process that never deletes anything. Returns the request."""

        async def accept() -> UUID:
            engine = create_engine(str(self.settings.database_url))
            key = uuid4()
            keys = self.settings.home / "keys"
            with OwnSlots.open(keys / "requests") as slots:
                intake = Intake(engine, slots, Keyring.open(keys), max_queued_nodes=None)
                async with transaction(engine) as connection:
                    await ApiKeyRepository(connection).create(key, "tests", list(Scope), bytes(32))
                new = NewRequest("small", RequestKind.NODE, Targets(nodes=(node,)), None, key)
                accepted = await intake.accept(new)
                await intake.close()
            await engine.dispose()
            return accepted.request.id

        return asyncio.run(accept())

    def moment(self) -> int:
        """Copy the current store and database."""
        self.copies += 1
        shutil.copytree(self.model, self.model.with_name(f"copy-{self.copies}"))
        self._execute(f'CREATE DATABASE "{self.database}_{self.copies}" TEMPLATE "{self.database}"')
        return self.copies

    def restore_store(self, moment: int) -> None:
        shutil.rmtree(self.model)
        shutil.copytree(self.model.with_name(f"copy-{moment}"), self.model)

    def restore_database(self, moment: int) -> None:
        self._execute(f'DROP DATABASE "{self.database}" WITH (FORCE)')
        self._execute(f'CREATE DATABASE "{self.database}" TEMPLATE "{self.database}_{moment}"')

    def forget_copies(self) -> None:
        for number in range(1, self.copies + 1):
            self._execute(f'DROP DATABASE "{self.database}_{number}" WITH (FORCE)')

    def refused(self, reason: str, error: type[Exception] = StateMismatch) -> None:
        """Check that a start fails with the reason and changes neither the store nor the keys."""
        before = self.files()
        with pytest.raises(error, match=reason) as refusal:
            self.serve(only_a_start)
        assert "recover" in getattr(refusal.value, "remedy", "")
        assert self.files() == before

    def files(self) -> dict[str, str]:
        """Return the SHA-256 of every file of the store and of the keys."""
        files = [*self.model.rglob("*"), *(self.settings.home / "keys").rglob("*")]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()}

    def tombstones(self) -> list[Path]:
        """Return the files of the store's own tombstones."""
        return sorted(self.model.glob("tombstones-*"))

    def damage_tombstones(self) -> None:
        """Flip a bit of every record."""
        for path in self.tombstones():
            damaged = bytearray(path.read_bytes())
            damaged[64::64] = bytes(byte ^ 1 for byte in damaged[64::64])
            path.write_bytes(damaged)

    def recovered_by_the_log(self) -> list[dict[str, Any]]:
        """Return the details in the leaves of recoveries, newest first."""

        async def read() -> list[dict[str, Any]]:
            engine = create_engine(str(self.settings.database_url), pool_size=1)
            async with transaction(engine) as connection:
                leaves = [parse_canonical(leaf.data) for leaf in await LogRepository(connection).unrequested()]
            await engine.dispose()
            return [leaf["details"] for leaf in leaves if leaf["type"] == "recovered"]

        return asyncio.run(read())

    def verified_leaves(self) -> list[dict[str, Any]]:
        """Return all leaves, after `lethe audit verify` has accepted an export."""
        exported = self.settings.home / "log.ndjson"
        assert self.command("audit", "export", "--out", exported).status == 0
        verified = self.command("audit", "verify", exported, "--key", self.command("audit", "key").stdout.strip())
        assert verified.status == 0, verified.stdout
        lines = map(json.loads, exported.read_text().splitlines())
        return [parse_canonical(line["leaf"].encode()) for line in lines if "leaf" in line]

    def recoveries(self) -> list[Recovery]:
        async def read() -> list[Recovery]:
            engine = create_engine(str(self.settings.database_url), pool_size=1)
            async with transaction(engine) as connection:
                found = list(await RecoveryRepository(connection).list("small"))
            await engine.dispose()
            return found

        return asyncio.run(read())

    def assert_forgotten(self) -> None:
        """Check that nothing in `world` is served or on the disk, and that all other predictions ignore it."""

        async def work(lethe: Lethe) -> None:
            names = self.world.graph.node_ids
            answer = (await lethe.client.post("/predict", json={"nodes": list(names)})).json()
            assert (set(answer["deleted"]), answer["unknown"]) == (self.world.nodes, [])
            found = {one["node"]: one["probabilities"] for one in answer["predictions"]}
            expected = self.world.predictions()
            assert closest(found, expected, expected.keys()) <= TOLERANCE

        self.serve(work)
        assert self.world.left_on_disk(self.model) == set()
        assert len(list((self.model / "versions").iterdir())) == 1

    def _execute(self, statement: str) -> None:
        async def execute() -> None:
            connection = await asyncpg.connect(self.postgres_url)
            await connection.execute(statement)
            await connection.close()

        asyncio.run(execute())


async def only_a_start(lethe: Lethe) -> None:
    """Do nothing beyond the start."""


@pytest.fixture
def site(
    trained: Path,
    tmp_path: Path,
    database_url: str,
    redis_url: str,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Any:
    settings = settings_of(trained, tmp_path / "home", database_url, redis_url)
    for name, value in {"LETHE_HOME": str(settings.home), "DATABASE_URL": database_url, "REDIS_URL": redis_url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LETHE_REPAIR", "never")
    # A recovery that loses its lease begins again, and is then recorded twice. Long enough for a starved machine.
    monkeypatch.setenv("LETHE_LEASE_TTL_S", "120")
    lethe = CommandLine(capfd)
    made = Site(settings, postgres_url, World(trained), lambda *flags: lethe("recover", *flags), lethe)
    handlers, logged = logging.getLogger().handlers[:], structlog.get_config()
    yield made
    logging.getLogger().handlers[:] = handlers
    structlog.configure(**logged)
    made.forget_copies()


def deleted(recovery: Recovery) -> tuple[int, int, int]:
    """Return the numbers of nodes, features and edges that a recovery deleted again."""
    version = recovery.version
    return version.deleted_nodes, version.deleted_features, version.deleted_edges


def everything(world: World) -> list[dict[str, Any]]:
    """Return a deletion of each kind; the node's features support a direction that no other's do."""
    edge = world.edge(CHANNEL, "20", "3")
    return [node_body(CHANNEL, "21"), features_body("20"), edge_body(edge)]
