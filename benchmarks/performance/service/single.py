"""Time from POST to `applied`, one request at a time, beside the disk waits of its durable steps.

In their order, each needing the one before: the sync of the request's key (1); the commit that accepts it (2); the
version's weights, manifest and folder, synced together (3); the folder of versions (4); the commit that moves the
pointer (5); the prepared CURRENT (6) and its folder (7); the commit that records `applied` (8). The floor is these
eight, repeated one by one for the same requests and files of the same sizes, on the same disk and server, and
LETHE_MAX_WAIT_MS, during which the first two pass. Under `always` the repair is subtracted, as recorded for the batch.

The next request is sent once the one before is `completed`, or already once it is `applied`. In the second case, the
erasure that `completed` waits for, and its syncs, come before the next batch.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

import asyncpg
import httpx2
import numpy as np

from benchmarks.performance.service.commit_floor import CommitFloor
from benchmarks.performance.service.lethe_process import HEADERS
from benchmarks.performance.service.lethe_world import Events, World
from model_store.disk.durable import durable_changes, make_folder, rename, write_file

#: A setting of the service and a part of the floor.
MAX_WAIT_MS = 20
#: Bytes of the key of one request in its file.
_SLOT_BYTES = 64
_REPAIRS = """
    SELECT requests.id, coalesce((durations_ms ->> 'repair')::float, 0)
    FROM requests JOIN versions ON versions.id = batch_id
"""
_STEPS = """
    SELECT key, percentile_cont(0.5) WITHIN GROUP (ORDER BY value::float) AS median
    FROM versions, jsonb_each_text(durations_ms) WHERE cause = 'batch' GROUP BY key ORDER BY median DESC
"""


async def one_at_a_time(place: World, requests: int) -> dict[str, list[float]]:
    """Return, by pace: p50, p95, p99 to `applied`, those of the floor, the repair's median, and the excess over both
    (ms).

    The excess is a difference of medians, with each repair subtracted from its own request. The medians of a batch's
    steps are printed.
    """
    nodes, times = iter(place.nodes), dict[str, dict[UUID, float]]()
    events = await Events.follow(place.lethe.database_url)
    async with httpx2.AsyncClient(base_url=place.lethe.url, headers=HEADERS, timeout=60.0) as client:
        for pace, seen in (("completed", events.completed), ("applied", events.applied)):
            times[pace] = {}
            for _ in range(requests):
                asked = time.monotonic()
                answer = await client.post("/deletions", json={"kind": "node", "nodes": [next(nodes)]})
                request = UUID(answer.raise_for_status().json()["id"])
                await events.wait(len(seen) + 1, seen)
                times[pace][request] = 1000 * (events.applied[request] - asked)
            await events.wait(len(events.applied), events.completed)
    await events.close()
    connection = await asyncpg.connect(place.lethe.database_url)
    repairs = dict(await connection.fetch(_REPAIRS))
    steps = ", ".join(f"{name} {median:.1f}" for name, median in await connection.fetch(_STEPS))
    await connection.close()
    print(f"medians of a batch's steps in ms: {steps}", file=sys.stderr, flush=True)
    floor = 1000 * np.percentile(await waits(place), [50, 95, 99])
    found = {}
    for pace, of_pace in times.items():
        took, repair = np.array(list(of_pace.values())), np.array([repairs[one] for one in of_pace])
        above = np.median(took - repair) - floor[0]
        found[pace] = [*np.percentile(took, [50, 95, 99]), *floor, np.median(repair), above]
    return found


async def waits(place: World) -> list[float]:
    """Return the seconds of each request's waits."""
    model = place.lethe.home / "model"
    version = model / "versions" / (model / "CURRENT").read_text().split("\n")[0]
    files = {path.name: path.read_bytes() for path in (version / "state.safetensors", version / "manifest.json")}
    floor, taken = await CommitFloor.open(place.lethe.database_url), list[float]()
    with tempfile.TemporaryDirectory(dir=place.lethe.home) as temporary, (Path(temporary) / "keys").open("wb") as keys:
        folder = Path(temporary)
        for number, request in enumerate(await floor.requests(nodes=1)):
            began = time.perf_counter()
            os.pwrite(keys.fileno(), bytes(_SLOT_BYTES), number * _SLOT_BYTES)
            os.fdatasync(keys.fileno())
            await floor.commit(0, [request])
            accepted = time.perf_counter() - began
            unfinished = folder / f".{number}"
            make_folder(unfinished)
            with durable_changes() as changes:
                for name, content in files.items():
                    changes.write(unfinished / name, [content])
                changes.name(unfinished)
            rename(unfinished, folder / str(number))
            await floor.commit(1, [request])
            write_file(folder / ".CURRENT", [str(number).encode()])
            rename(folder / ".CURRENT", folder / "CURRENT")
            await floor.commit(2, [request])
            taken.append(time.perf_counter() - began + max(0.0, MAX_WAIT_MS / 1000 - accepted))
    await floor.close()
    return taken
