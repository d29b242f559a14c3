"""Predictions of all nodes over HTTP: formats, scopes, pages, and downloads that a deletion overtakes."""

import asyncio
import importlib.util
import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from model_store.versions import VersionRef
from service.domain.scopes import Scope
from service.predictions.downloads import Downloads
from service.predictions.writer import Publisher
from service.web.api import bulk_routes
from tests.support.inputs.asked import Asked, asked
from tests.support.service import publications
from tests.support.service.api_harness import CLASSES, NODES, Api
from tests.support.service.bodies import node_body, refused
from tests.support.service.db_harness import until

#: Enough that no buffer of a connection holds the file.
MANY = 100_000
DOWNLOADER = (Scope.PREDICTIONS_READ, Scope.PREDICTIONS_ALL)


async def test_a_file_has_what_each_node_is_answered_with(api: Api) -> None:
    writer = await api.client(Scope.DELETIONS_WRITE)
    await api.forget(["7"], (await writer.post("/deletions", json=node_body("7"))).json()["id"])
    for scopes in ((), (Scope.PREDICTIONS_EXACT,)):
        client = await api.client(*DOWNLOADER, *scopes)
        predictions = (await client.post("/predict", json={"nodes": list(NODES)})).json()["predictions"]
        answer = await client.get("/predictions")
        assert (answer.headers["content-type"], answer.headers["lethe-model-version"]) == ("application/x-ndjson", "2")
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert [one | {"model_version": 2} for one in predictions] == lines
        assert (await client.get("/predict/0")).json() == lines[0]
        table = pyarrow.parquet.read_table(io.BytesIO((await client.get("/predictions?format=parquet")).content))
        assert table.column_names == ["node", "label", *(f"probability_{name}" for name in CLASSES)]
        assert table.column("node").to_pylist() == [one["node"] for one in predictions]
        assert table.column("probability_b").to_pylist() == [one["probabilities"]["b"] for one in predictions]
    # Who may predict nodes does not learn the ids of all.
    predictor = await api.client(Scope.PREDICTIONS_READ)
    assert refused(await predictor.get("/predictions"), 403, "missing-scope")["scope"] == "predictions:all"
    refused(await client.get("/predictions?format=xlsx"), 422, "invalid-request")


async def test_pages_are_of_one_version_or_end_with_409(api: Api) -> None:
    client = await api.client(*DOWNLOADER)
    first = await client.get("/predictions?format=csv&limit=25")
    after = first.headers["lethe-next-cursor"]
    rest = await client.get(f"/predictions?format=csv&cursor={after}")
    assert "lethe-next-cursor" not in rest.headers
    nodes = [line.split(",")[0] for page in (first, rest) for line in page.text.splitlines()[1:]]
    assert nodes == list(NODES)
    await api.forget(
        ["7"], (await (await api.client(Scope.DELETIONS_WRITE)).post("/deletions", json=node_body("7"))).json()["id"]
    )
    assert refused(await client.get(f"/predictions?cursor={after}"), 409, "conflict")["model_version"] == 2
    refused(await client.get("/predictions?cursor=1"), 400, "malformed-cursor")
    refused(await client.get("/predictions?limit=0"), 422, "invalid-request")


async def test_without_pyarrow_the_formats_that_need_it_are_refused_by_name(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await api.client(*DOWNLOADER)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for form in ("parquet", "arrow"):
        document = refused(await client.get(f"/predictions?format={form}"), 422, "invalid-request")
        assert form in document["detail"]
        assert "csv or ndjson" in document["remedy"]
    assert (await client.get("/predictions?format=csv")).status_code == 200


@pytest.fixture
async def ask(database_url: str, tmp_path: Path) -> AsyncIterator[Asked]:
    async with asked(database_url, tmp_path) as ask:
        yield ask


class Shown:
    """A large model whose first version is shown; `forget` makes the second, as steps 5 to 9 of a deletion do."""

    def __init__(self, api: Api) -> None:
        home = api.services.settings.home
        self.ids = [f"customer-{number:07}" for number in range(MANY)]
        self.first = publications.snapshot(1, np.random.default_rng(3).dirichlet(np.ones(len(CLASSES)), MANY))
        self._publisher = Publisher(home, home / "share")
        model = publications.published_model(self.ids, self.first, classes=CLASSES)
        publications.load(self._publisher, VersionRef(1, 9), model, self.first, fencing=9)

    def forget(self, row: int) -> None:
        second = publications.snapshot(2, self.first.probabilities, (), [row])
        ref = VersionRef(2, 9)
        self._publisher.write(ref, second, publications.version_facts(second), of=VersionRef(1, 9))
        assert self._publisher.show(ref, 9)
        self._publisher.erase(ref, np.array([row]), np.empty((0, 2), dtype=np.int64))
        self._publisher.remove_older(ref)


async def begin(ask: Asked) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Request all predictions, and read only the beginning."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ask.port, limit=4096)
    writer.write(f"GET /predictions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ask.key}\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    return reader, writer


def held(*patterns: bytes, home: Path) -> list[str]:
    """Return the files of the home, and the open files of this process, that contain one of the patterns."""
    opened = [path for path in Path("/proc/self/fd").iterdir() if path.exists() and path.is_file()]
    files = [path for path in home.rglob("*") if path.is_file()]
    return [str(path) for path in (*opened, *files) if any(pattern in path.read_bytes() for pattern in patterns)]


def unnamed(home: Path) -> list[str]:
    """Return the open files of this process that were in the home and have no name."""
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [link for link in links if link.startswith(str(home)) and link.endswith("(deleted)")]


async def test_a_download_that_a_deletion_overtakes_stays_of_one_version_and_leaves_nothing(
    ask: Asked, tmp_path: Path
) -> None:
    shown = Shown(ask.api)
    reader, writer = await begin(ask)
    patterns = (shown.ids[77].encode(), shown.first.probabilities[77].tobytes())
    assert held(*patterns, home=tmp_path)
    shown.forget(77)
    # The caller has read next to nothing, so the copy is still needed.
    assert unnamed(tmp_path)
    assert held(*patterns, home=tmp_path) == []
    body = await everything(reader)
    assert body.count(b'"model_version":1}') == MANY
    assert b'"model_version":2' not in body
    writer.close()
    answer = await (await ask.api.client(*DOWNLOADER)).get("/predictions")
    assert (answer.text.count('"model_version":2'), shown.ids[77] in answer.text) == (MANY - 1, False)


async def everything(reader: asyncio.StreamReader) -> bytes:
    """Return the rest of a chunked body. Raises IncompleteReadError and ConnectionError if it is cut."""
    body = bytearray()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    return bytes(body)


async def test_a_caller_who_is_too_slow_is_cut_off_once_another_version_is_the_head(
    ask: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, services = Shown(ask.api), ask.api.services
    monkeypatch.setattr(bulk_routes, "_LOOK_S", 0.01)
    downloads = Downloads(services.reader, services.settings.home / "run", grace_s=0.05)
    ask.api.app.state.services = replace(services, downloads=downloads)
    reader, writer = await begin(ask)
    assert downloads._running == 1
    shown.forget(77)

    async def is_over() -> bool:
        return downloads._running == 0

    await until(is_over)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await everything(reader)
    writer.close()


async def test_a_version_that_is_not_known_to_be_the_head_for_a_moment_sets_no_lasting_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_routes, "_LOOK_S", 0.001)
    looks = SimpleNamespace(grace_s=3600.0, is_current=lambda _copy: False)
    download: Any = SimpleNamespace(_downloads=looks, _copy=None)
    async with asyncio.timeout(None) as deadline:
        watching = asyncio.create_task(bulk_routes.Download._watch(download, deadline))

        async def is_set() -> bool:
            return deadline.when() is not None

        async def is_lifted() -> bool:
            return deadline.when() is None

        await until(is_set)
        looks.is_current = lambda _copy: True
        await until(is_lifted)
        watching.cancel()
