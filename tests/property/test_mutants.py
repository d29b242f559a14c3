"""Broken copies of the numerical code must fail the tests that guard them; the intact copy must pass.

Each mutant is the source with one passage replaced.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.preloaded import ROOT, Preloaded

FORGETTING = "tests/unit/projector/forgetting/test_forgetting.py"
FAINT = "tests/property/test_faint.py"
BOUND = "tests/property/test_certificate.py"
PROJECTION = "projector/forgetting/projection.py"
OPTIMUM = "projector/forgetting/optimum.py"
GRAM = "projector/forgetting/gram.py"
CERTIFICATE = "projector/forgetting/certificate.py"
MECHANISM = "projector/certified/mechanism.py"
NOISE = "projector/certified/noise.py"
NORMAL_EQUATIONS = "projector/solvers/normal_equations.py"
TRAINING_ROWS = "projector/forgetting/training_rows.py"
SQUARED = "tests/property/test_normal_equations.py"
PUBLISHED = "tests/property/test_published_weights.py"
PUBLICATION = "tests/unit/projector/certified/test_mechanism.py"
UPDATE = "projector/forgetting/update.py"
GROWTH = "projector/forgetting/growth.py"
JOINING = "projector/forgetting/joining.py"
PROPAGATION = "projector/network/propagation.py"
PROPAGATED = "tests/unit/projector/network/test_propagation.py"
LIVING = "tests/unit/projector/test_update.py"
GROWN = "tests/unit/projector/forgetting/test_growth.py"

#: The whole update of weights and coefficients in `project`, and of the factors in `downdate`.
_UPDATE = ("    after, residual = _corrected(_without(replace(before", "    return SpanUpdate(")
_FACTORS = ("    Y, K = leverages(gram.M_pinv, X_D)\n", "def _decomposed(")


@dataclass(frozen=True)
class Mutant:
    """A replacement between two marks in the source (the second stays), and the tests that must notice it."""

    file: str
    marks: tuple[str, str]
    replacement: str
    caught_by: tuple[str, ...]
    #: The file of those tests.
    tests: str = FORGETTING


_PROJECTED_BY_FACTORS = """    M = whole(gram.M) - X_D.T @ X_D
    updated = replace(gram, M=M, M_pinv=M_pinv, rank=round(float((M * M_pinv).sum())))
    lost = torch.linalg.svd(X_D.T - M @ (M_pinv @ X_D.T), full_matrices=False).U
    return Downdate(updated, lost[:, : max(0, gram.rank - updated.rank)], 0, FactorMethod.DOWNDATE)


"""

_LARGE_ROW = "test_the_rounding_of_one_row_a_thousand_times_the_others_is_covered[softmax]"
_DRIFTED = "test_tau_is_at_least_what_sums_have_drifted_and_of_its_size"
_REGRESSION = "test_a_regression_follows_every_change_of_its_graph[normal equations-1]"
_BLOCKS = "test_every_kind_of_block_is_updated[row]"
_OBSERVED = "test_an_observer_does_no_better_than_was_promised[small]"
_SHARED_ROW = "test_the_rounding_of_a_row_that_all_others_are_made_of_is_covered[softmax]"

MUTANTS = {
    "removes the wrong rows, consistently": Mutant(
        PROJECTION,
        ("    X_D = rows.dense_rows(deleted)\n", "    down = "),
        "    deleted = (deleted + 1) % rows.nodes\n    X_D = rows.dense_rows(deleted)\n",
        (
            "test_the_surviving_rows_on_disk_explain_the_weights_after_every_batch[small]",
            "test_the_feature_injection_test[small]",
        ),
    ),
    "skips the update and only clears coefficients": Mutant(
        PROJECTION,
        _UPDATE,
        "    after, residual = replace(span, gram=down.gram, in_span=surviving), 0.0\n",
        (
            "test_the_surviving_rows_on_disk_explain_the_weights_after_every_batch[small]",
            "test_the_feature_injection_test[small]",
        ),
    ),
    "textbook Woodbury": Mutant(
        GRAM,
        _FACTORS,
        "    Y = X_D @ gram.M_pinv\n"
        "    K = Y @ X_D.T\n"
        "    M_pinv = whole(gram.M_pinv) + Y.T @ torch.linalg.inv(torch.eye(len(K), dtype=K.dtype) - K) @ Y\n"
        + _PROJECTED_BY_FACTORS,
        ("test_the_feature_injection_test[small]",),
    ),
    "the paper's printed Option 2": Mutant(
        GRAM,
        _FACTORS,
        "    S = X_D.T @ (torch.eye(len(X_D), dtype=X_D.dtype) - X_D @ X_D.T) @ X_D\n"
        "    M_pinv = whole(gram.M_pinv) + gram.M_pinv @ S @ gram.M_pinv\n" + _PROJECTED_BY_FACTORS,
        (
            "test_the_feature_injection_test[small]",
            "test_the_surviving_rows_on_disk_explain_the_weights_after_every_batch[small]",
            "test_ordinary_batches_are_downdated_and_never_recomputed[small]",
        ),
    ),
    "projects the weights on faint directions instead of taking the deleted rows' part": Mutant(
        PROJECTION,
        ("    if down.weakened or residual > _REFINEMENT:\n", "    if supports_nothing("),
        "",
        ("test_a_direction_fades_over_fifty_batches_until_it_is_lost",),
        FAINT,
    ),
    "drops faint directions with the lost ones": Mutant(
        GRAM,
        ("    limit = gram.support_limit\n", "    found = faint = "),
        "    return directions\n",
        ("test_a_direction_fades_over_fifty_batches_until_it_is_lost",),
        FAINT,
    ),
    "keeps a lost direction": Mutant(
        GRAM,
        ("    limit = gram.support_limit\n", "    found = faint = "),
        "    return directions[:, :0]\n",
        (
            "test_a_direction_fades_over_fifty_batches_until_it_is_lost",
            "test_a_faint_direction_of_many_nodes_goes_with_a_large_batch",
        ),
        FAINT,
    ),
    "projects the repaired weights": Mutant(
        OPTIMUM,
        ("    return replace(span, W=span.B + M @ T, T=T)", "\n"),
        "    return replace(span, W=M_pinv @ (M @ span.W), T=T)",
        ("test_a_random_faint_direction_leaves_the_guarantee[25]",),
        FAINT,
    ),
    "bounds the distance without what rounding adds": Mutant(
        CERTIFICATE,
        ("    representation, size = ", "    return _EPSILON"),
        "    return 0.0\n",
        (_LARGE_ROW, _SHARED_ROW),
        BOUND,
    ),
    "lets every row err as one of mean norm does": Mutant(
        CERTIFICATE,
        ("    from_logits = ", "    from_products = "),
        "    curvature = objective.loss.curvature(point.logits, objective.labels)\n"
        "    mean = float(rows.square().mean() * torch.linalg.norm(curvature))\n"
        "    from_logits = math.sqrt(representation.columns / 6) * mean * size\n",
        (_LARGE_ROW,),
        BOUND,
    ),
    "takes errors that rows share to be independent": Mutant(
        CERTIFICATE,
        ("    from_logits = ", "    from_products = "),
        "    alone = float(torch.linalg.norm(rows * passed))\n"
        "    from_logits = math.sqrt(representation.columns / 6) * alone * size\n",
        (_SHARED_ROW,),
        BOUND,
    ),
    "trusts sums that have drifted": Mutant(
        NORMAL_EQUATIONS,
        ("        return self.tau * size + self.target_tau\n", "\n    def factor("),
        "        return 0.0\n",
        ("test_the_bound_covers_what_long_rows_leave_behind",),
        SQUARED,
    ),
    "counts the drift of the targets' sums as none": Mutant(
        NORMAL_EQUATIONS,
        ("        return math.sqrt(self.target_variances.sum())\n", "\n    def drift("),
        "        return 0.0\n",
        (_DRIFTED,),
        SQUARED,
    ),
    "counts no rounding of updates": Mutant(
        NORMAL_EQUATIONS,
        ("    return total, variance + of_moved", "\n\ndef _square("),
        "    return total, variance\n",
        (_DRIFTED,),
        SQUARED,
    ),
    "adds rows that leave": Mutant(
        NORMAL_EQUATIONS,
        ("            changes = [(-1.0, was, ", "was.leading[by])"),
        "            changes = [(1.0, was, ",
        (_DRIFTED, _BLOCKS),
        SQUARED,
    ),
    "solves the sums of before": Mutant(
        TRAINING_ROWS,
        ("        self._equations = self._equations.after(", "    def _levels("),
        "",
        (_BLOCKS,),
        SQUARED,
    ),
    "updates the blocks of all hops from the rows of none": Mutant(
        TRAINING_ROWS,
        ("        levels.append(neighbourhood(", "    return np.stack(levels)\n"),
        "        levels.append(levels[-1])\n",
        (_BLOCKS,),
        SQUARED,
    ),
    "takes rows that a step before has changed to be those of the graph": Mutant(
        TRAINING_ROWS,
        ("        reached[:, : self._changed", "        rows._changed = reached\n"),
        "",
        (_REGRESSION,),
        LIVING,
    ),
    "updates the degrees of a weighted graph by its numbers of edges": Mutant(
        PROPAGATION,
        ("        degrees = adjacency[changed]", "        scaled = "),
        "        degrees = neighbours[changed]\n",
        ("test_joining_edges_of_any_weight_equals_building_the_larger_graph[sym]",),
        PROPAGATED,
    ),
    "computes changed rows of H without weights": Mutant(
        PROPAGATION,
        ("        edges = self.edges.adjacency[rows]", "        own = "),
        "        edges = (self.edges.adjacency[rows][:, columns] != 0).astype(np.float64)\n",
        ("test_rows_of_h_that_changed_without_a_change_of_counts_are_computed_again[spec8-reweight-True]",),
        LIVING,
    ),
    "trains on the targets of before": Mutant(
        "projector/forgetting/live_graph.py",
        ("            targets[label_rows], values[label_rows] = ", "        propagator = "),
        "            targets[label_rows] = 0\n",
        (_REGRESSION,),
        LIVING,
    ),
    "publishes with half of the noise": Mutant(
        MECHANISM,
        ("    steps += rounded_normal(", "    return torch.from_numpy"),
        "    steps += rounded_normal(secret, version, mechanism.weights, mechanism.bits - 1)\n",
        (_OBSERVED,),
        PUBLISHED,
    ),
    "has the same noise for every version": Mutant(
        NOISE,
        ("        block = secret", "        return np.frombuffer"),
        '        block = secret + asked.to_bytes(8, "big")\n',
        (_OBSERVED,),
        PUBLISHED,
    ),
    "publishes weights beyond the cap": Mutant(
        MECHANISM,
        ("    if not certificate.bound <= mechanism.cap:\n", "    return _noisy("),
        "",
        ("test_weights_beyond_the_cap_are_not_published",),
        PUBLICATION,
    ),
    "lets join before what leaves has left": Mutant(
        UPDATE,
        ("    projection = project_batch(model.state, model", "    nodes, feature_rows, labels = ("),
        """    if joining is not None:
        graph = model.live_graph.joined(joining)
        whole = project_batch(model.state, model.features, model.labels, [Removal()])
        whole, rows = join_batch(whole, joining, graph.inputs, [model.features.beta])
        beta = rows[0].into(model.features.beta, graph.propagator.nodes)
        features = InputRows(graph.inputs.features.rows, beta)
        training = model.training_rows.on(graph)
        model = replace(model, state=whole.state, features=features, live_graph=graph, training_rows=training)
        joining = None
    projection = project_batch(model.state, model.features, model.labels, removals)
""",
        ("test_a_later_carrier_of_a_column_inherits_nothing_of_one_that_leaves",),
        LIVING,
    ),
    "lets rows of any length join": Mutant(
        "projector/asked.py",
        ("    longest = LONGEST_ROW", "    lengths = "),
        "    longest = 0.0\n",
        ("test_rows_much_longer_than_those_of_the_import_are_refused_by_name",),
        LIVING,
    ),
    "keeps the scale of the import": Mutant(
        GROWTH,
        ("    if float(M.trace()) <= limit:\n", "    identity = "),
        "    return False\n",
        ("test_the_scale_rises_with_rows_that_are_much_longer",),
        LIVING,
    ),
    "lets faint rows stay faint together": Mutant(
        GROWTH,
        ("    largest, columns = 0.0, added\n", "    if columns.shape"),
        "    return 0.0\n",
        ("test_faint_rows_become_strong_together",),
        LIVING,
    ),
    "scales columns whatever becomes of the values": Mutant(
        "projector/asked.py",
        ("    wrong = ~_each_row(scaled", "    if wrong.any()"),
        "    wrong = np.zeros(len(names), dtype=np.bool_)\n",
        (
            "test_values_that_the_column_scales_make_inexact_are_refused[digits lost]",
            "test_values_that_the_column_scales_make_inexact_are_refused[overflow]",
        ),
        LIVING,
    ),
    "takes for changed the rows of nodes with another number of neighbours": Mutant(
        "projector/forgetting/live_graph.py",
        ("        edited[rewired] = edited[feature_rows] = True\n", "        return edited"),
        "        before = self.propagator.neighbours\n"
        "        edited[: before.size] = before != propagator.neighbours[: before.size]\n",
        (
            "test_rows_of_h_that_changed_without_a_change_of_counts_are_computed_again[spec1-correct-False]",
            "test_rows_of_h_that_changed_without_a_change_of_counts_are_computed_again[spec2-withdraw-False]",
        ),
        LIVING,
    ),
    "counts a corrected row as one that did not leave": Mutant(
        "projector/forgetting/batch.py",
        ("    remains = np.flatnonzero(", "    left = "),
        "    remains = np.arange(leaving.rows.size)\n",
        ("test_a_correction_counts_as_a_deletion_of_what_was_there[False]",),
        LIVING,
    ),
    "measures what left after others have joined": Mutant(
        JOINING,
        ("        between_halves=True,\n", "    )\n"),
        "",
        ("test_what_left_is_measured_before_what_joins",),
        LIVING,
    ),
    "gives withdrawn labels the weight of all": Mutant(
        "projector/forgetting/live_graph.py",
        ("        size = float(torch.linalg.norm(representation.transposed(residual * theirs", "        return size"),
        "        size = float(torch.linalg.norm(representation.transposed(residual)))\n",
        ("test_the_training_norm_is_what_withdrawn_labels_add_to_the_weights",),
        LIVING,
    ),
    "leaves large coefficients to what joins": Mutant(
        PROJECTION,
        ("    if float(torch.linalg.norm(taken)) > ", "    in_span[joined] = True"),
        "    places, given = joined, -given\n",
        ("test_what_a_barely_supported_direction_has_made_large_does_not_stay",),
        LIVING,
    ),
    "gives what joins the weight that it would have": Mutant(
        PROJECTION,
        ("        places, given = joined, -given\n", "    in_span[joined] = True"),
        "        places, given, taken = joined, torch.zeros_like(given), torch.zeros_like(taken)\n",
        ("test_adding_and_deleting_the_same_nodes_returns_the_model[after a deletion]",),
        LIVING,
    ),
    "has the wrong Schur complement for new directions": Mutant(
        GROWTH,
        ("            Z = torch.linalg.solve_triangular(root, X_A @ Q", "            V = "),
        "            Z = X_A @ Q\n",
        ("test_rows_that_bring_directions_are_updated_too",),
        GROWN,
    ),
    "adds new directions by Woodbury alone": Mutant(
        GROWTH,
        ("    if not gram.is_full:\n        directions", "    updated = carried_over("),
        "",
        ("test_rows_that_bring_directions_are_updated_too",),
        GROWN,
    ),
    "counts one candidate's distance to the optimum for both": Mutant(
        MECHANISM,
        ("    without_grid = ", "    sigma = ratio"),
        "    without_grid = cap + _EPSILON * (R + cap)\n",
        (_OBSERVED,),
        PUBLISHED,
    ),
}


def copied(target: Path) -> Path:
    for package in ("projector", "model_store", "service", "tests"):
        shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__", "static"))
    shutil.copy(ROOT / "pyproject.toml", target)
    return target


@pytest.fixture(scope="module")
def python() -> Iterator[Preloaded]:
    """The imports of a copy's tests, except what is copied."""
    preloaded = Preloaded(
        "torch", "scipy.optimize", "scipy.sparse.linalg", "sqlalchemy", "hypothesis", "pytest", path=()
    )
    yield preloaded
    preloaded.close()


def outcomes(python: Preloaded, copy: Path, file: str, tests: tuple[str, ...]) -> dict[str, str]:
    """Return the outcome of each test of a file, `PASSED` or `FAILED`, in its own process."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    flags = ("-q", "-rA", "--tb=line", "-p", "no:cacheprovider", "-m", "slow or not slow")
    # Modules imported earlier only have less detailed assertions.
    start = python.python("-m", "pytest", *flags, "-W", "ignore::pytest.PytestAssertRewriteWarning")
    log = copy.with_name("log")
    process = start([f"{file}::{test}" for test in tests], environment, copy, log)
    with process.stdout:
        output = process.stdout.read()
    process.wait()
    # Names of cases contain blanks; a failure's reason follows a dash.
    lines = [line.partition(" - ")[0].partition(" ") for line in output.splitlines()]
    found = {test.rpartition("::")[2]: outcome for outcome, _, test in lines if outcome in ("PASSED", "FAILED")}
    assert set(found) == set(tests), output + log.read_text()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("file", [FORGETTING, FAINT, BOUND, SQUARED, PUBLISHED, PUBLICATION, LIVING, GROWN, PROPAGATED])
def test_the_unbroken_copy_passes(python: Preloaded, file: str, tmp_path: Path) -> None:
    guards = {test for mutant in MUTANTS.values() if mutant.tests == file for test in mutant.caught_by}
    assert set(outcomes(python, copied(tmp_path / "copy"), file, tuple(sorted(guards))).values()) == {"PASSED"}


def broken(mutant: Mutant) -> str:
    """Return the source of its file with the mistake in place of what is between its marks."""
    source = (ROOT / mutant.file).read_text()
    start, end = mutant.marks
    assert source.count(start) == 1
    begin = source.index(start)
    return source[:begin] + mutant.replacement + source[source.index(end, begin) :]


def test_every_mutant_has_its_place_in_the_source() -> None:
    for name, mutant in MUTANTS.items():
        compile(broken(mutant), name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_by_each_of_its_tests(python: Preloaded, name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    copy = copied(tmp_path / "copy")
    (copy / mutant.file).write_text(broken(mutant))
    assert outcomes(python, copy, mutant.tests, mutant.caught_by) == dict.fromkeys(mutant.caught_by, "FAILED")
