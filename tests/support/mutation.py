"""Mutation testing: small random mistakes in core files, each of which some test should notice.

    python -m tests.support.mutation --seed 48 --mutants 60 --results before.ndjson
    python -m tests.support.mutation --replay before.ndjson --results after.ndjson

The first command draws the mutants. The second makes the same ones in another version of the code, and exits with 1 if
a mutant survives that was killed before. Results are written one by one, so an interrupted run resumes.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Wall time after which the tests of one mutant count as hanging (seconds).
_HANGS_AFTER_S = 1800
#: The same for one test.
_TEST_HANGS_AFTER_S = 240


@dataclass(frozen=True)
class Target:
    """A core file, and the tests that should notice its mistakes, quickest first."""

    path: str
    tests: tuple[str, ...]


_PROPERTY = "tests/property"
_FORGETTING = ("tests/unit/projector/forgetting", _PROPERTY, "tests/unit/projector/certified")
_NETWORK = ("tests/unit/projector/network", "tests/unit/projector")
_STORE = ("tests/unit/model_store", "tests/erasing/test_kept_tombstones.py")
_BATCHING = ("tests/unit/service/unlearner", "tests/batching", "tests/repairing")
_LOG = ("tests/unit/service/log", "tests/evidence")
_ACCESS = ("tests/unit/service/access", "tests/access", "tests/accepting/test_write_only_keys.py")

#: Names that stay when files move.
TARGETS = {
    "projection": Target("projector/forgetting/projection.py", _FORGETTING),
    "gram": Target("projector/forgetting/gram.py", _FORGETTING),
    "batch": Target("projector/forgetting/batch.py", _FORGETTING),
    "certificate": Target("projector/forgetting/certificate.py", _FORGETTING),
    "propagation": Target("projector/network/propagation.py", _NETWORK),
    "losses": Target(
        "projector/network/losses.py", ("tests/unit/projector/network", "tests/unit/projector", _PROPERTY)
    ),
    "newton": Target(
        "projector/solvers/newton.py", ("tests/unit/projector/solvers", "tests/unit/projector", _PROPERTY)
    ),
    "mechanism": Target(
        "projector/certified/mechanism.py", ("tests/unit/projector/certified", _PROPERTY, "tests/certified")
    ),
    "model-versions": Target("model_store/versions.py", _STORE),
    "tombstones": Target("model_store/tombstones.py", _STORE),
    "version-writer": Target("service/unlearner/version_writer.py", _BATCHING),
    "lease-keeper": Target("service/unlearner/lease_keeper.py", _BATCHING),
    "lease": Target("service/db/lease.py", ("tests/batching/test_db_lease.py", *_BATCHING, "tests/running")),
    "queue-stream": Target("service/queue/stream.py", ("tests/unit/service/queue", *_BATCHING)),
    "queue-refusal": Target("service/queue/connection.py", ("tests/unit/service/queue", *_BATCHING)),
    "log": Target("service/log/events.py", _LOG),
    "merkle": Target("service/log/merkle.py", _LOG),
    "verify-export": Target("service/log/export.py", _LOG),
    "limits": Target("service/access/limits.py", _ACCESS),
    "key-memory": Target("service/access/key_memory.py", _ACCESS),
}


@dataclass(frozen=True)
class Mutant:
    """One mistake: the function of a target, the original text and its replacement.

    In another version of the file, it is located by the original text, not by its line.
    """

    target: str
    function: str
    before: str
    after: str
    #: Its number among equal replacements in the same function, from 0.
    occurrence: int


#: A replacement in a source text: its function, the start and end of the original, and the new text.
@dataclass(frozen=True)
class _Exchange:
    function: str
    start: int
    end: int
    after: str


_COMPARISONS: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
}
_ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(),
    ast.Mod: ast.Mult(),
    ast.BitAnd: ast.BitOr(),
    ast.BitOr: ast.BitAnd(),
    ast.LShift: ast.RShift(),
    ast.RShift: ast.LShift(),
}


class _Exchanges(ast.NodeVisitor):
    """Every possible mistake in a module, except in strings, annotations, imports and error messages."""

    def __init__(self, source: str) -> None:
        self.found: list[_Exchange] = []
        self._scope: list[str] = []
        self._lines = [0]
        for line in source.encode().splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def _exchange(self, node: ast.expr | ast.stmt, after: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        end = self._lines[node.end_lineno - 1] + node.end_col_offset
        self.found.append(_Exchange(".".join(self._scope), start, end, after))

    def _negate(self, test: ast.expr) -> None:
        self._exchange(test, f"(not ({ast.unparse(test)}))")

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._scope.append(node.name)
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._enter(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._enter(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._enter(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Positions within an f-string are not those of the file."""

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if not isinstance(node.value, ast.Yield):
            self._exchange(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._exchange(node, "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._exchange(node, "pass")

    def visit_If(self, node: ast.If) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._exchange(node, f"({ast.unparse(ast.BoolOp(other, node.values))})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for position, operator in enumerate(node.ops):
            operators = [*node.ops[:position], _COMPARISONS[type(operator)], *node.ops[position + 1 :]]
            self._exchange(node, f"({ast.unparse(ast.Compare(node.left, operators, node.comparators))})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = _ARITHMETIC.get(type(node.op))
        # A union of dictionaries has no alternative operator.
        if other is not None and not isinstance(node.right, ast.Dict):
            self._exchange(node, f"({ast.unparse(ast.BinOp(node.left, other, node.right))})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self._exchange(node, str(node.value + 1))


def _mutants(target: str) -> Iterator[tuple[Mutant, bytes]]:
    """Yield every mutant of a target, and its source."""
    source = (ROOT / TARGETS[target].path).read_bytes()
    visitor = _Exchanges(source.decode())
    visitor.visit(ast.parse(source))
    seen: Counter[Mutant] = Counter()
    for exchange in visitor.found:
        before = re.sub(r"\s+", " ", source[exchange.start : exchange.end].decode())
        first = Mutant(target, exchange.function, before, exchange.after, 0)
        mutant = Mutant(target, exchange.function, before, exchange.after, seen[first])
        seen[first] += 1
        yield mutant, source[: exchange.start] + exchange.after.encode() + source[exchange.end :]


def _drawn(seed: int, count: int) -> list[Mutant]:
    """Draw equally many for each file, so that changing one file does not change the draws of others."""
    mutants = []
    for position, target in enumerate(TARGETS):
        share = count // len(TARGETS) + (position < count % len(TARGETS))
        every = [mutant for mutant, _ in _mutants(target)]
        mutants += random.Random(f"{seed} {target}").sample(every, share)
    return mutants


def _copied(folder: Path) -> Path:
    """Copy the code and its tests, without what git ignores."""
    names = ["projector", "model_store", "service", "lethe_client", "benchmarks", "tests", "docs", "examples", "docker"]
    for name in names:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    return folder


def _noticed_by(copy: Path, mutant: Mutant, source: bytes) -> str | None:
    """Return the test that fails only with this mutant; "hang" if one does not end; None if all pass."""
    file = copy / TARGETS[mutant.target].path
    original = file.read_bytes()
    file.write_bytes(source)
    failed = _first_failure(copy, TARGETS[mutant.target].tests)
    file.write_bytes(original)
    if failed is not None and failed != "hang" and _first_failure(copy, (failed,)) is not None:
        raise RuntimeError(f"{failed} fails without a mutant, too.")
    return failed


def _first_failure(copy: Path, tests: tuple[str, ...]) -> str | None:
    """Return the first test that fails, "hang", or None if none does."""
    # pytest runs a file once, even if it is named twice.
    existing = [test for test in tests if (copy / test.partition("::")[0]).exists()]
    command = [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    command += ["-m", "not slow", f"--timeout={_TEST_HANGS_AFTER_S}", *existing]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=_HANGS_AFTER_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "hang"
    if ended.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE)
    if failed is None and "Timeout" not in ended.stdout + ended.stderr:
        raise RuntimeError(f"pytest ended with {ended.returncode}:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return failed[1] if failed else "hang"


def _read(path: Path) -> dict[Mutant, str | None]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {Mutant(**line["mutant"]): line["noticed_by"] for line in lines}


def _judge(mutants: list[Mutant], results: Path) -> dict[Mutant, str | None]:
    """Return the test that notices each mutant, running only those missing from `results`."""
    known = _read(results)
    sources: dict[Mutant, bytes] = {}
    for name in {mutant.target for mutant in mutants}:
        sources |= dict(_mutants(name))
    with tempfile.TemporaryDirectory(prefix="lethe-mutants-") as folder, results.open("a") as out:
        copy = _copied(Path(folder))
        for number, mutant in enumerate(mutants, 1):
            if mutant in known:
                continue
            known[mutant] = _noticed_by(copy, mutant, sources[mutant]) if mutant in sources else "gone"
            print(f"{number}/{len(mutants)} {mutant}: {known[mutant] or 'SURVIVES'}", flush=True)
            out.write(json.dumps({"mutant": asdict(mutant), "noticed_by": known[mutant]}) + "\n")
            out.flush()
    return {mutant: known[mutant] for mutant in mutants}


def main() -> int:
    """Make the mutants, print the test that notices each, and compare with an earlier run if given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=48)
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--replay", type=Path, help="results of an earlier run, whose mutants are made again")
    parser.add_argument("--results", type=Path, required=True, help="where results are added, a JSON object a line")
    given = parser.parse_args()
    earlier = _read(given.replay) if given.replay else {}
    noticed = _judge(list(earlier) or _drawn(given.seed, given.mutants), given.results)
    survivors = [mutant for mutant, by in noticed.items() if by is None]
    gone = sum(by == "gone" for by in noticed.values())
    print(
        f"{len(noticed)} mutants: {len(noticed) - len(survivors) - gone} killed, {len(survivors)} survive, {gone} gone"
    )
    new = [mutant for mutant in survivors if mutant in earlier and earlier[mutant] is not None]
    for mutant in new:
        print(f"Survives only now: {mutant}, which {earlier[mutant]} noticed.")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
