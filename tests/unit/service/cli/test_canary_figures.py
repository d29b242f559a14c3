"""The benchmark of canaries measures what its tables say."""

from benchmarks.additions.canaries import measure, report
from model_store.datasets.load import load_dataset
from projector.network.spec import Combine, ModelSpec
from tests.support.models.stored import SMALL


def test_every_cohort_had_weight_and_has_none_after_its_drill() -> None:
    graph = load_dataset(SMALL, data_dirs=[])
    results = [
        measure(graph, ModelSpec(combine=Combine.CONCAT, seed=seed), 0.8, cohorts=3, nodes=2, device="cpu")
        for seed in (0, 1)
    ]
    for result in results:
        assert [fall.cohort for fall in result.falls] == [1, 2, 3]
        for fall in result.falls:
            assert fall.before > 0
            assert fall.after <= 1e-12 * fall.before
            assert fall.directions_removed == 1
        # Far above guessing among four classes, with canaries and after them.
        assert min(result.accuracy_with, result.accuracy_after) > 0.5
    tables = report({"small": results}, {"small": graph})
    cost, falls = tables.split("\n\n")
    with_ = 100 * sum(result.accuracy_with for result in results) / 2
    cells = cost.splitlines()[2].strip("| ").split(" | ")
    assert cells[:2] == ["small", "300"]
    assert cells[5] == "80.0 ± 0.0"
    assert cells[6].startswith(f"{with_:.1f} ± ")
    assert cells[7].startswith(f"{with_ - 80:+.1f} ± ")
    assert cells[9] == "1"
    head, rule, *rows = falls.splitlines()
    assert {line.count("|") for line in (head, rule, *rows)} == {4}
    least, most = (choice(result.falls[0].before for result in results) for choice in (min, max))
    assert rows[0].startswith(f"| 1 | {least:.3g} to {most:.3g} | ")
    assert [row.split(" | ")[0] for row in rows] == ["| 1", "| 2", "| 3"]
