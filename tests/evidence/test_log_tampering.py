"""A log of 200 events, manipulated in every way: verification finds it and names the leaf."""

import asyncio
import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from service.db.engine import create_engine
from service.db.transactions import transaction
from service.domain.states import EventType
from service.log import export
from service.log.canonical import canonical
from service.log.checkpoints import Checkpoint, Signer, VerifierKey, verify
from service.log.events import EventRepository
from service.log.export import verify_export
from service.log.export_pages import export_lines
from service.log.merkle import Frontier
from service.log.signed_checkpoints import CheckpointRepository
from service.log.signing_keys import LogKeys
from service.log.verification import Fault, Report
from tests.support.clients.command_line import CommandLine
from tests.support.databases import Templates
from tests.support.evidence.log_lines import Line, again, leaf_at, other, saying
from tests.support.service.db_harness import MODEL, Database, Said, open_database

EVENTS = 200
#: Members of an event.
EVENT_MEMBERS = ("event", "request_id", "type", "time", "details")

examples = settings(
    max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)


@dataclass
class World:
    """A signed log of 200 events in a real database, and its export."""

    url: str
    folder: Path
    lines: list[Line] = field(repr=False)
    keys: list[VerifierKey]

    def execute(self, *statements: str) -> list[int]:
        """Run statements in one transaction as the tables' owner. Returns the rows that each changed."""

        async def inside() -> list[int]:
            engine = create_engine(self.url, pool_size=1)
            try:
                async with engine.begin() as conn:
                    return [(await conn.exec_driver_sql(statement)).rowcount for statement in statements]
            finally:
                await engine.dispose()

        return asyncio.run(inside())

    def copy(self) -> list[Line]:
        return copy.deepcopy(self.lines)

    @property
    def leaves(self) -> list[Line]:
        return [line for line in self.lines if "leaf" in line]

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        return [verify(line["checkpoint"], self.keys) for line in self.lines if "checkpoint" in line]


@pytest.fixture(scope="module")
def world(templates: Templates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("tampering")

    async def fill(url: str) -> list[Line]:
        async with open_database(url, folder) as db:
            await log_events(db, LogKeys.open(folder / "keys"))
            return [line async for page in export_lines(db.engine) for line in page]

    with templates.migrated() as url:
        lines = asyncio.run(fill(url))
        keys = [signer.public for signer in LogKeys.open(folder / "keys").signers().values()]
        yield World(url, folder, lines, keys)


async def log_events(db: Database, keys: LogKeys) -> None:
    """Log 200 events of 40 requests, in transactions of up to five, signed as they come; some together, some one by
    one.
    """
    rng = random.Random(6)
    requests = [await db.accept(str(number)) for number in range(40)]
    logged = 0
    while logged < EVENTS:
        count = min(rng.choice((1, 1, 2, 5)), EVENTS - logged)
        chosen = rng.sample(requests, count)
        members = {request: {"norm": rng.random(), "n": logged, "steps": {"erase": 1.0}} for request in chosen}
        async with transaction(db.engine) as conn:
            if logged % 7 == 3:
                # Events without a request are manipulated as well.
                count, said = 1, Said(**members[chosen[0]], model=MODEL)
                await EventRepository(conn).append_unrequested(EventType.IMPORTED, said)
            else:
                contents = {one: Said(**of_it) for one, of_it in members.items()}
                await EventRepository(conn).append_many(EventType.FAILED, contents)
            await CheckpointRepository(conn).sign(keys)
        logged += count


def check(lines: list[Line], world: World, against: Checkpoint | None = None) -> Report:
    return verify_export(json.loads(json.dumps(lines)), world.keys, against)


def named(report: Report) -> set[int | None]:
    return {finding.index for finding in report.findings}


def rewritten(line: Line, data: st.DataObject) -> Line:
    """Return a leaf and its event, changed together, with the matching hash."""
    member = data.draw(st.sampled_from(["details", "time", "type"]))
    return saying(line, {member: other(line["event"][member], data)})


def test_the_log_as_it_is_verifies(world: World) -> None:
    report = check(world.lines, world)
    assert report.is_good, report.findings
    assert report.leaves == EVENTS
    assert 60 < report.signed == len(world.checkpoints) < EVENTS
    assert len(report.unrequested) > 9
    assert all("a newly trained model replaced tiny" in what for _, what in report.unrequested)
    for earlier in world.checkpoints[::10]:
        assert check(world.lines, world, earlier).is_good


@examples
@given(data=st.data())
def test_any_changed_field_of_an_event_is_found_and_its_leaf_named(world: World, data: st.DataObject) -> None:
    lines, index = world.copy(), data.draw(st.integers(0, EVENTS - 1))
    event = leaf_at(lines, index)["event"]
    member = data.draw(st.sampled_from(EVENT_MEMBERS))
    event[member] = other(event[member], data)
    assert named(check(lines, world)) == {index}


@examples
@given(data=st.data())
def test_any_changed_field_of_a_leaf_is_found_and_it_is_named(world: World, data: st.DataObject) -> None:
    lines, index = world.copy(), data.draw(st.integers(0, EVENTS - 1))
    line = leaf_at(lines, index)
    column = data.draw(st.sampled_from(["text", "byte", "hash", "root"]))
    if column == "text":
        leaf = json.loads(line["leaf"])
        member = data.draw(st.sampled_from(sorted(leaf)))
        line["leaf"] = canonical(leaf | {member: other(leaf[member], data)}).decode()
    elif column == "byte":
        line["leaf"] = other(line["leaf"], data)
    else:
        line[column] = other(line[column], data)
    assert index in named(check(lines, world))


@examples
@given(data=st.data())
def test_a_deleted_row_is_found_and_its_index_named(world: World, data: st.DataObject) -> None:
    lines, index = world.copy(), data.draw(st.integers(0, EVENTS - 1))
    line = leaf_at(lines, index)
    what = data.draw(st.sampled_from(["event", "leaf", "both"]))
    if what == "event":
        line["event"] = None
    else:
        lines.remove(line)
        if what == "leaf":
            lines.insert(-1, export.unlogged(line["event"]))
    report = check(lines, world)
    assert index in named(report)
    if what == "leaf":
        assert any(f"event {line['event']['event']} has no leaf" in finding.what for finding in report.findings)


@examples
@given(data=st.data())
def test_a_leaf_rewritten_together_with_its_event_and_hash_is_named(world: World, data: st.DataObject) -> None:
    lines, index = world.copy(), data.draw(st.integers(0, EVENTS - 1))
    line = leaf_at(lines, index)
    line |= rewritten(line, data)
    assert named(check(lines, world)) == {index}


@examples
@given(data=st.data())
def test_a_leaf_rewritten_with_the_whole_tree_above_it_is_named_by_the_checkpoints(
    world: World, data: st.DataObject
) -> None:
    """Everything that can be recomputed is changed to match, except the signatures.

    They come with every transaction, so the finding names the leaf, or those of its transaction.
    """
    lines, index = world.copy(), data.draw(st.integers(0, EVENTS - 1))
    line = leaf_at(lines, index)
    line |= rewritten(line, data)
    tree = Frontier()
    for each in lines:
        if "leaf" in each:
            tree.append(bytes.fromhex(each["hash"]))
            each["root"] = tree.root.hex()
    [finding] = check(lines, world).findings
    sizes = [0, *(checkpoint.size for checkpoint in world.checkpoints)]
    begin = max(size for size in sizes if size <= index)
    end = min(size for size in sizes if size > index) - 1
    assert finding.index == begin
    assert begin == end or f"one after it up to {end}," in finding.what


@examples
@given(data=st.data())
def test_a_changed_checkpoint_is_found(world: World, data: st.DataObject) -> None:
    lines = world.copy()
    places = [place for place, line in enumerate(lines) if "checkpoint" in line]
    chosen = data.draw(st.sampled_from(places))
    change = data.draw(st.sampled_from(["byte", "swap", "move"]))
    if change == "byte":
        lines[chosen]["checkpoint"] = other(lines[chosen]["checkpoint"], data)
    else:
        another = data.draw(st.sampled_from([place for place in places if place != chosen]))
        lines[chosen], lines[another] = lines[another], lines[chosen]
    assert not check(lines, world).is_good


@examples
@given(data=st.data())
def test_a_truncated_log_is_found_and_where_it_ends_is_named(world: World, data: st.DataObject) -> None:
    left = data.draw(st.integers(0, EVENTS - 1))
    kept = [line for line in world.leaves if line["index"] < left]
    rest = [line for line in world.copy() if "checkpoint" in line]
    lines = [world.lines[0], *kept, *rest, export.end(left, len(rest))]
    assert left in named(check(lines, world))


@pytest.mark.ci
@examples
@given(data=st.data())
def test_a_log_rolled_back_with_its_checkpoints_is_found_against_an_earlier_one(
    world: World, data: st.DataObject
) -> None:
    """The log itself is consistent; only a stored checkpoint reveals the loss."""
    known = data.draw(st.sampled_from(world.checkpoints[1:]))
    rolled_back_to = data.draw(st.sampled_from([one.size for one in world.checkpoints if one.size < known.size]))
    [signer] = LogKeys.open(world.folder / "keys").signers().values()
    sizes = [checkpoint.size for checkpoint in world.checkpoints]
    lines = again(world.leaves[:rolled_back_to], signer, sizes)
    assert check(lines, world).is_good
    assert named(check(lines, world, known)) == {rolled_back_to}
    # Grown again with other events, to the same size or beyond.
    regrown = [*world.leaves[:rolled_back_to]]
    regrown += [saying(line, {"details": {"n": -1}}) for line in world.leaves[rolled_back_to:]]
    lines = again(regrown, signer, sizes)
    assert check(lines, world).is_good
    [finding] = check(lines, world, known).findings
    assert f"first {known.size} leaves differ from the earlier checkpoint" in finding.what


@examples
@given(data=st.data())
def test_a_log_built_anew_is_found_by_the_key_and_against_any_earlier_checkpoint(
    world: World, data: st.DataObject
) -> None:
    victim = data.draw(st.integers(0, EVENTS - 1))
    leaves = world.leaves
    leaves[victim] = rewritten(leaves[victim], data)
    sizes = [checkpoint.size for checkpoint in world.checkpoints]
    [own] = LogKeys.open(world.folder / "keys").signers().values()
    thief = Signer(own.public.name, data.draw(st.binary(min_size=32, max_size=32)))
    found = check(again(leaves, thief, sizes), world).findings
    assert Fault(None, "no checkpoint is signed by a trusted key") in found
    # With the right key, only an earlier checkpoint can reveal it.
    lines = again(leaves, own, sizes)
    assert check(lines, world).is_good
    known = data.draw(st.sampled_from([one for one in world.checkpoints if one.size > victim]))
    [finding] = check(lines, world, known).findings
    assert f"first {known.size} leaves differ from the earlier checkpoint" in finding.what


@settings(examples, max_examples=20)
@example(one=0, distance=18, change="doubled")
@given(
    one=st.integers(0, EVENTS - 1),
    distance=st.integers(1, EVENTS - 1),
    change=st.sampled_from(["removed", "doubled", "swapped", "cut"]),
)
def test_lines_removed_doubled_or_swapped_in_an_exported_file_are_found(
    world: World, one: int, distance: int, change: str
) -> None:
    lines = world.copy()
    one, two = one % len(lines), (one + distance) % len(lines)
    if change == "removed":
        del lines[one]
    elif change == "doubled":
        lines.insert(two, lines[one])
    elif change == "swapped":
        lines[one], lines[two] = lines[two], lines[one]
    else:
        del lines[one:]
    assert not verify_export(lines, world.keys).is_good


def event_of(index: int) -> str:
    return f"WHERE id = (SELECT event_id FROM leaves WHERE index = {index})"


#: The changed text of a leaf, and the matching hash.
REWRITTEN = """regexp_replace(data, '"n":[0-9]+', '"n":100000')"""
#: A change in the database, by SQL, and the index that must be found; every kind once, on the real tables.
CHANGES = {
    "an event's payload": ([f"UPDATE events SET payload = payload || '{{\"n\": 0.5}}' {event_of(77)}"], 77),
    "an event's time": ([f"UPDATE events SET created_at = created_at + interval '1 us' {event_of(5)}"], 5),
    "a leaf's text": (["UPDATE leaves SET data = replace(data, 'failed', 'applied') WHERE index = 120"], 120),
    "a leaf's hash": (["UPDATE leaves SET hash = sha256('x') WHERE index = 199"], 199),
    "a leaf gone": (["DELETE FROM leaves WHERE index = 64"], 64),
    "an event gone": ([f"DELETE FROM events {event_of(31)}"], 31),
    "two swapped": (["UPDATE leaves SET index = 21 - index WHERE index IN (10, 11)"], 10),
    "leaf and event": (
        [
            f"UPDATE events SET payload = payload || '{{\"n\": 100000}}' {event_of(150)}",
            f"UPDATE leaves SET data = {REWRITTEN}, hash = sha256('\\x00'::bytea || convert_to({REWRITTEN}, 'UTF8'))"
            " WHERE index = 150",
        ],
        150,
    ),
    "the end": (["DELETE FROM leaves WHERE index >= 190"], 190),
}
GUARDED = ("events", "leaves")
GUARDS_OFF = (
    *(f"CREATE TABLE saved_{table} AS TABLE {table}" for table in GUARDED),
    *(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in GUARDED),
    "ALTER TABLE leaves DROP CONSTRAINT leaves_event_id_fkey",
    "ALTER TABLE leaves DROP CONSTRAINT leaves_pkey",
)
RESTORED = (
    "DELETE FROM leaves",
    "DELETE FROM events",
    "INSERT INTO events OVERRIDING SYSTEM VALUE TABLE saved_events",
    "INSERT INTO leaves TABLE saved_leaves",
    "ALTER TABLE leaves ADD CONSTRAINT leaves_pkey PRIMARY KEY (index)",
    "ALTER TABLE leaves ADD CONSTRAINT leaves_event_id_fkey FOREIGN KEY (event_id) REFERENCES events (id)",
    *(f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in GUARDED),
    *(f"DROP TABLE saved_{table}" for table in GUARDED),
)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_in_the_database_is_found_from_the_command_line(
    world: World,
    change: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    redis_url: str,
) -> None:
    statements, index = CHANGES[change]
    monkeypatch.setenv("DATABASE_URL", world.url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    lethe = CommandLine(capsys)
    key = tmp_path / "log.pub"
    key.write_text("".join(f"{one}\n" for one in world.keys))
    saved = tmp_path / "checkpoint"
    saved.write_text(next(line["checkpoint"] for line in reversed(world.lines) if "checkpoint" in line))

    def exported(name: str) -> Path:
        ran = lethe("audit", "export", "--out", tmp_path / name, "--home", world.folder)
        assert ran.status == 0, ran.stderr
        return tmp_path / name

    def verified(path: Path) -> tuple[int, str]:
        ran = lethe("audit", "verify", path, "--key", key, "--against", saved)
        return ran.status, ran.stdout

    world.execute(*GUARDS_OFF)
    try:
        assert all(world.execute(*statements))
        status, output = verified(exported("changed.ndjson"))
    finally:
        world.execute(*RESTORED)
    assert status == 1
    assert f"leaf {index}: " in output
    status, output = verified(exported("restored.ndjson"))
    assert (status, output[:6]) == (0, "Valid:"), output
