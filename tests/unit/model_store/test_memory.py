"""The memory that work needs, the memory available, and the refusal in between."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from model_store.build import build_model
from model_store.memory import Need, available_bytes, require_memory, serving_needs, training_needs
from projector.errors import DeviceError
from projector.network.product_costs import keeps_dense
from projector.network.sizes import Sizes
from projector.network.spec import Combine, LossKind, ModelSpec, SolverKind
from tests.support.models.small_graphs import graph_of

GIB = 1 << 30
CPU = torch.device("cpu")
SPEC = ModelSpec()
WIDE = Sizes(18_333, 81_894, features=60_000, classes=15, training=11_000, stored_values=1_100_000, sparse=True)


def total(needs: tuple[Need, ...]) -> int:
    return sum(need.bytes for need in needs)


def test_a_gram_matrix_that_does_not_fit_is_refused_with_both_figures_and_what_to_do() -> None:
    needs = training_needs(SPEC, WIDE)
    with pytest.raises(DeviceError) as refused:
        require_memory("Training", needs, "cpu", available=lambda device: 24 * GIB)
    figures = [int(figure.replace(",", "")) for figure in re.findall(r"[\d,]{12,}", refused.value.detail)]
    assert figures == [total(needs), 24 * GIB]
    assert "5 matrices of 60,000 x 60,000" in refused.value.detail
    assert "fewer features" in refused.value.remedy


def test_a_model_whose_gram_matrix_fits_nowhere_is_refused_before_work_starts() -> None:
    """1.6 TB of factors, from features of a few bytes."""
    features = sp.csr_array(np.eye(6, 200_000))
    graph = graph_of([(0, 1)], features, [0, 1, 0, 1, 0, 1])
    with pytest.raises(DeviceError, match="1,600,"):
        build_model(graph, SPEC, name="wide", dataset="made", split="full")


def test_a_device_without_room_is_refused_with_the_cpu_as_a_way_out() -> None:
    with pytest.raises(DeviceError, match="free") as refused:
        require_memory("Serving", serving_needs(SPEC, WIDE), "cuda", available=lambda device: 24 * GIB)
    assert "memory of cuda" in refused.value.detail
    assert "--device cpu" in refused.value.remedy


@pytest.mark.parametrize(
    "larger",
    [
        replace(SPEC, combine=Combine.CONCAT),
        replace(SPEC, label_hops=2),
        replace(SPEC, diffusion=True),
        replace(SPEC, solver=SolverKind.SGD, batch_size=512),
    ],
)
def test_every_part_of_a_model_adds_to_what_it_needs(larger: ModelSpec) -> None:
    assert total(training_needs(larger, WIDE)) > total(training_needs(SPEC, WIDE))


def test_a_representation_that_training_and_repairs_keep_is_counted() -> None:
    arxiv = Sizes(169_343, 1_157_799, 128, 40, training=90_941, stored_values=169_343 * 128, sparse=False)
    spec = ModelSpec(combine=Combine.CONCAT, hops=3, label_hops=3)
    for needs in (training_needs, serving_needs):
        kept = [need.bytes for need in needs(spec, arxiv) if "representation" in need.what]
        assert kept == [90_941 * (4 * 128 + 3 * 40) * 12]
        assert not any("representation" in need.what for need in needs(spec, WIDE))


def test_serving_needs_what_additions_and_the_squared_loss_keep() -> None:
    """A batch makes the larger graph beside the one in use; the sums over training rows exist before and after it."""
    few = Sizes(1_000, 5_000, features=20, classes=3, training=100, stored_values=20_000, sparse=False, value_bytes=8)
    needs = {need.what: need.bytes for need in serving_needs(replace(SPEC, loss=LossKind.SQUARED), few)}
    assert needs["the graph with additions"] == 17 * 11_000 + 60 * 1_000 + 8 * 20_000
    assert needs["the normal equations"] == 3 * 20 * 20 * 8 + (0 if keeps_dense(SPEC, few) else 100 * 20 * 8)
    assert needs.keys() - {need.what for need in serving_needs(SPEC, few)} == {"the normal equations"}


@pytest.mark.parametrize(("device", "blocks"), [("cpu", 1), ("cuda", 4)])
def test_coefficients_that_are_in_no_file_are_counted(device: str, blocks: int) -> None:
    """Those of the features, 1,152 MiB, are in a file on the CPU; those of the labels, 384 MiB, are not."""
    sizes = Sizes(1 << 20, 1 << 22, features=10, classes=48, training=10, stored_values=10 << 20, sparse=False)
    spec = replace(SPEC, combine=Combine.CONCAT, hops=2, label_hops=1)
    counted = [need.bytes for need in serving_needs(spec, sizes, device) if need.what == "span coefficients"]
    assert counted == [2 * blocks * (1 << 20) * 48 * 8]


def test_serving_needs_the_factors_in_use_beside_those_being_recomputed() -> None:
    assert total(serving_needs(SPEC, WIDE)) > total(training_needs(SPEC, WIDE))


def machine(root: Path, *, available_kib: int | None = 8 << 20, group: str | None = None) -> Path:
    (root / "proc/self").mkdir(parents=True)
    if available_kib is not None:
        (root / "proc/meminfo").write_text(f"MemTotal: 16777216 kB\nMemAvailable: {available_kib} kB\n")
    if group is not None:
        (root / "proc/self/cgroup").write_text(group + "\n")
    return root


def limited(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def test_a_container_has_what_its_group_leaves(tmp_path: Path) -> None:
    root = machine(tmp_path, group="0::/")
    usage = {"memory.max": str(2 * GIB), "memory.current": str(GIB), "memory.stat": f"anon 1\ninactive_file {GIB // 4}"}
    limited(root / "sys/fs/cgroup", usage)
    assert available_bytes(CPU, root=root) == GIB + GIB // 4


def test_the_tightest_group_above_the_process_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, group="0::/system.slice/lethe.service")
    limited(root / "sys/fs/cgroup/system.slice", {"memory.max": str(3 * GIB), "memory.current": str(GIB)})
    limited(root / "sys/fs/cgroup/system.slice/lethe.service", {"memory.max": "max", "memory.current": str(GIB)})
    assert available_bytes(CPU, root=root) == 2 * GIB


def test_limits_of_the_first_version_of_control_groups_count(tmp_path: Path) -> None:
    root = machine(tmp_path, group="9:cpu,cpuacct:/\n4:memory:/docker/0a")
    usage = {
        "memory.limit_in_bytes": str(GIB),
        "memory.usage_in_bytes": "4096",
        "memory.stat": "total_inactive_file 96",
    }
    limited(root / "sys/fs/cgroup/memory", usage)
    assert available_bytes(CPU, root=root) == GIB - 4096 + 96
