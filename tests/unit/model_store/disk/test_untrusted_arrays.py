"""Files of arrays that declare more than they hold, or unpack to more than can be read."""

import io
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.lib import format as npy

from model_store.datasets.load import load_dataset
from model_store.disk.untrusted_arrays import ArraysUnreadable, read_npy, read_npz
from model_store.pretrained_files import read_weights
from projector.errors import GraphError
from projector.training.pretrained import WeightsError


def declaring(shape: tuple[int, ...], body: bytes, dtype: str = "<f8") -> bytes:
    """Return an `.npy` that declares an array of this shape and holds `body`."""
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + body


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


DECLARED = {
    "745 GiB": declaring((100_000, 1_000_000), bytes(80)),
    "less than it holds": declaring((2,), bytes(80)),
    "a negative length": declaring((-1,), bytes(80)),
    "objects": declaring((1,), bytes(8), "|O"),
    "20 million strings of no bytes": declaring((20_000_000,), b"", "<U0"),
    "20 million nothings": declaring((20_000_000,), b"", "|V0"),
    "no array": b"hello",
    "nothing": b"",
}


@pytest.mark.parametrize("case", DECLARED)
def test_an_array_that_is_not_as_declared_is_refused_before_it_is_read(case: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", W=DECLARED[case], x=DECLARED[case], edge_index=b"", y=b"")
    with pytest.raises(ArraysUnreadable, match=r"a\.npz"):
        read_npz(path, ["x"])
    with pytest.raises(GraphError, match=r"a\.npz"):
        load_dataset(str(path), data_dirs=[])
    with pytest.raises(WeightsError, match=r"a\.npz"):
        read_weights(path)
    (tmp_path / "a.npy").write_bytes(DECLARED[case])
    with pytest.raises(ArraysUnreadable, match=r"a\.npy"):
        read_npy(tmp_path / "a.npy")


def test_an_archive_that_unpacks_to_hundreds_of_times_its_size_is_refused(tmp_path: Path) -> None:
    rows, row = 300, bytes(1 << 20)
    with (
        zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file,
        file.open("x.npy", "w") as member,
    ):
        member.write(declaring((rows, 1 << 17), b""))
        for _ in range(rows):
            member.write(row)
    with pytest.raises(ArraysUnreadable, match="unpack") as refused:
        read_npz(tmp_path / "bomb.npz", ["x"])
    assert "CSR" in refused.value.remedy


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_is_read_only_where_unpacking_it_is_bounded(method: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as file:
        file.writestr("x.npy", declaring((1,), bytes(8)))
    with pytest.raises(ArraysUnreadable, match="another method than DEFLATE"):
        read_npz(tmp_path / "a.npz", ["x"])
    torch.save({"x": torch.ones(3)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "a.pt", "w", method) as file:
        for name in plain.namelist():
            file.writestr(name, plain.read(name))
    # torch itself unpacks no other; the plain one is reported to hold a dict.
    with pytest.raises(GraphError, match=r"a\.pt cannot be read"):
        load_dataset(str(tmp_path / "a.pt"), data_dirs=[])


def test_an_archive_is_not_unpacked_into_memory_that_is_not_there(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(1000))
    with pytest.raises(ArraysUnreadable, match="1,000 are free"):
        read_npz(tmp_path / "a.npz", ["x"], free_bytes=lambda: 1000)
    assert read_npz(tmp_path / "a.npz", ["x", "y"], free_bytes=lambda: None)["x"].shape == (1000,)


def test_a_saved_data_that_is_no_plain_graph_is_refused_in_words(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch_geometric.data import Data

    def saved(data: object) -> str:
        torch.save(data, tmp_path / "a.pt")
        with pytest.raises(GraphError) as refused:
            load_dataset(str(tmp_path / "a.pt"), data_dirs=[])
        assert "\x1b" not in str(refused.value)
        return str(refused.value)

    def graph(**others: object) -> Data:
        edges = torch.tensor([[0, 1], [1, 0]])
        return Data(**{"edge_index": edges, "x": torch.eye(2), "y": torch.tensor([0, 1])} | others)

    assert "list of str" in saved(graph(node_ids=[np.str_("a"), np.str_("b")]))
    assert "list of str" in saved(graph(node_ids=np.array(["a", "b"])))
    assert "dataset[0]" in saved((graph(), None))
    assert "more values than are stored" in saved(graph(x=torch.zeros(1, 1).expand(2, 10**12)))
