"""The benchmark of canaries measures what its tables say."""

from benchmarks.paper.canaries import accuracies, drills, measure
from model_store.datasets import load_dataset
from model_store.spec import Combine, ModelSpec
from tests.unit.unlearning.stored import SMALL


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
    lines = drills("small", results)
    assert [line.split(" | ")[:2] for line in lines] == [["| small", "1"], ["| small", "2"], ["| small", "3"]]
    least = min(result.falls[0].before for result in results)
    assert f"{least:.3g} to " in lines[0]
    with_ = 100 * sum(result.accuracy_with for result in results) / 2
    without, mean_with, *_ = accuracies(results).split(" | ")
    assert without == "80.0 ± 0.0"
    assert mean_with.startswith(f"{with_:.1f} ± ")
