"""A Redis that answers but does not work: readiness and a metric report it, with the cause, until it recovers."""

import contextlib
import errno
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest
from redis.asyncio import Redis
from redis.exceptions import ClusterCrossSlotError, ClusterDownError, MovedError, NoPermissionError, ResponseError
from sqlalchemy import text

from service.access.limits import NodeAllowance
from service.db import postgres_urls
from service.db.engine import create_engine
from service.errors import Unavailable
from service.processes import gauges, unlearner_probes
from service.queue.connection import connect, refusal, version_of
from service.queue.stream import DeletionStream
from service.settings import Settings
from tests.support.processes.valkey_process import ValkeyProcess
from tests.support.service.db_harness import until
from tests.support.service.limits import FAILURES, fail, is_refused, limits_of
from tests.support.service.running import Lethe, running

KEY = "lethe:small:deletions"
#: Redis' setting -> the operator's message: the cause, and a word of the remedy.
REFUSALS = {
    f"SET {KEY} x": ("the key of the queue", f"DEL {KEY}"),
    "CONFIG SET maxmemory 1": ("its memory is full", "maxmemory"),
    "REPLICAOF 127.0.0.1 1": ("it is a read-only replica", "primary"),
    "ACL SETUSER default -xadd": ("its access list (ACL) forbids this user a command", "+@stream"),
    "CONFIG SET requirepass secret": ("it asks for another user or password", "REDIS_URL"),
}


@pytest.fixture
async def redis(server: ValkeyProcess) -> AsyncIterator[Redis]:
    async with connect(server.url) as client:
        yield client


@pytest.mark.parametrize("command", REFUSALS)
async def test_a_refusal_of_redis_is_explained_without_naming_a_request(
    server: ValkeyProcess, redis: Redis, command: str
) -> None:
    await redis.execute_command(*command.split())  # type: ignore[no-untyped-call]  # redis gives it no types
    request_id = uuid4()
    async with connect(server.url) as other:
        with pytest.raises(Unavailable) as refused:
            await DeletionStream(other, "small").publish([request_id])
    cause, remedy = REFUSALS[command]
    assert cause in refused.value.detail
    assert remedy in refused.value.remedy
    assert str(request_id) not in str(refused.value)


@pytest.mark.parametrize(
    "error",
    [
        MovedError("1234 10.0.0.3:6379"),
        ClusterCrossSlotError("Keys in request don't hash to the same slot"),
        ClusterDownError("Hash slot not served"),
    ],
)
def test_a_node_of_a_cluster_is_refused_without_its_address(error: ResponseError) -> None:
    refused = refusal(error, KEY)
    assert "part of a cluster" in refused.detail
    assert "cluster mode disabled" in refused.remedy
    assert "10.0.0.3" not in f"{refused}"


@pytest.mark.parametrize("number", [errno.EPERM, errno.ECONNREFUSED])
def test_an_outage_is_described_in_the_systems_words_without_the_address(number: int) -> None:
    detail = refusal(OSError(number, "Connect call failed ('10.0.0.7', 6379)")).detail
    assert (os.strerror(number) in detail, "10.0.0.7" in detail) == (True, False)


async def test_the_rights_that_the_remedy_names_are_all_that_queue_and_limits_need(
    server: ValkeyProcess, redis: Redis
) -> None:
    named = re.search("`(.*)`", refusal(NoPermissionError(), KEY).remedy)
    assert named is not None
    rights = ("default", "resetkeys", "-@all", *named[1].split())
    await redis.execute_command("ACL", "SETUSER", *rights)  # type: ignore[no-untyped-call]  # as above
    await redis.connection_pool.disconnect()
    async with limits_of(server.url) as first, limits_of(server.url) as second:
        await fail(first, "192.0.2.7", FAILURES)
        # In Redis, where another process sees it.
        assert await is_refused(second, "192.0.2.7")
    async with connect(server.url) as other:
        for version in (1, 2):
            await NodeAllowance(other, "small", 1).take(uuid4(), version, [3])
    async with connect(server.url) as other:
        stream = DeletionStream(other, "small")
        await stream.ping()
        await stream.ensure_group()
        await stream.publish([uuid4(), uuid4()])
        [claimed] = await stream.claim("one", count=1, block_ms=0)
        [again] = await stream.reclaim("two", idle_ms=0)
        assert again.request_id == claimed.request_id
        await stream.acknowledge([again])
        assert await stream.length() == len((await stream.contents()).upcoming) == 1


async def said_of(url: str) -> Unavailable:
    """Return why `publish` fails at a Redis; the doctor reports the same."""
    async with connect(url, socket_timeout_s=0.5) as client:
        with pytest.raises(Unavailable) as refused:
            await DeletionStream(client, "small").publish([uuid4()])
    with pytest.raises(Unavailable) as looked_at:
        await version_of(url, socket_timeout_s=0.5)
    assert looked_at.value.remedy == refused.value.remedy or "maxclients" in looked_at.value.remedy
    return refused.value


@contextlib.contextmanager
def answering(line: bytes | None) -> Iterator[str]:
    """Yield host and port of a server that answers everything with one line; None answers nothing."""

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while connection.recv(1 << 16):
                if line is not None:
                    connection.sendall(line + b"\r\n")

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("line", "cause", "remedy"),
    [
        (b"-ERR max number of clients reached", "it has no connection left", "`maxclients`"),
        (b"-LOADING Valkey is loading the dataset in memory", "it is still loading its data", "Wait"),
        (
            b"-MISCONF Errors writing to the AOF file: No space left on device",
            "it rejects writes",
            "free space on its disk",
        ),
        (b"-DENIED Valkey is running in protected mode", "protected mode", "Give it a password"),
        (b"-NOAUTH Authentication required.", "another user or password", "REDIS_URL"),
        (b"-ERR something else", "it answers 'something else'", "documentation"),
    ],
)
async def test_what_redis_answers_is_quoted(line: bytes, cause: str, remedy: str) -> None:
    with answering(line) as place:
        refused = await said_of(f"redis://:hunter2@{place}/0")
    assert cause in refused.detail
    assert remedy in refused.remedy
    assert line[1:].decode().removeprefix("ERR ") in refused.for_operators
    assert "hunter2" not in f"{refused.for_operators} {refused.remedy}"


@pytest.mark.ci
async def test_readiness_and_a_metric_report_that_nobody_can_claim_a_request(
    settings: Settings, server: ValkeyProcess, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "_INTERVAL_S", 0.02)
    async with running(settings.model_copy(update={"redis_url": server.url})) as lethe:
        await until(lethe.is_ready)
        await redis.delete(KEY)
        await redis.set(KEY, "of another program")
        accepted = await lethe.delete("7")

        async def is_reported() -> bool:
            return (await unclaimed(lethe)) > 0.0

        await until(is_reported)
        # It may recover by itself, like a restart of Redis; after a while readiness asks for attention.
        assert (await lethe.client.get("/readyz")).status_code == 200
        monkeypatch.setattr(unlearner_probes, "MOST_STALL_S", 0.0)
        await until(lambda: fails(lethe))
        answer = (await lethe.client.get("/readyz")).json()
        [failing] = [check for check in answer["checks"] if not check["ok"]]
        assert failing["name"] == "queue"
        assert "The oldest request waits for" in failing["detail"]
        assert REFUSALS[f"SET {KEY} x"][0] in failing["detail"]
        assert f"DEL {KEY}" in answer["remedy"]
        assert (await lethe.state(accepted))["status"] == "queued"

        await redis.delete(KEY)
        await lethe.completed(accepted)
        await until(lethe.is_ready)

        async def is_over() -> bool:
            return (await unclaimed(lethe)) == 0.0

        await until(is_over)


@pytest.mark.ci
async def test_a_lock_that_somebody_keeps_is_named_until_deletions_go_on(
    settings: Settings, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "_INTERVAL_S", 0.02)
    # Instead of 20 s.
    monkeypatch.setitem(postgres_urls.SESSION_SETTINGS, "lock_timeout", "300ms")
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        database = create_engine(database_url)
        async with database.connect() as other:
            await other.execute(text("SELECT FROM pointers FOR SHARE"))
            accepted = await lethe.delete("7")

            async def is_named() -> bool:
                checks = (await lethe.client.get("/readyz")).json()["checks"]
                [unlearner] = [check for check in checks if check["name"] == "unlearner"]
                held_up = "held up in what it has begun. Another session of the database holds a lock on the table"
                return not unlearner["ok"] and f"{held_up} `pointers`" in unlearner["detail"]

            async def is_reported() -> bool:
                return (await unclaimed(lethe)) > 0.0

            await until(is_named)
            await until(is_reported)
        await database.dispose()
        await lethe.completed(accepted)
        await until(lethe.is_ready)


async def unclaimed(lethe: Lethe) -> float:
    """Return the age in the metrics."""
    page = await lethe.metrics()
    [found] = re.findall(r'^lethe_oldest_unclaimed_seconds{process="unlearner"} (\S+)$', page, re.MULTILINE)
    return float(found)


async def fails(lethe: Lethe) -> bool:
    return (await lethe.client.get("/readyz")).status_code == 503
