"""The Gram factors of a version, kept beside its weights so that a start need not compute them again.

    versions/<version>-<fencing>/gram        SHA-256 of what follows, then a header, M and M+ as float64

They are traces of what the version was made from, so they are part of its folder and leave the disk with it. A
checkpoint is used for the very version it was written for, and nothing is lost without it: one that is damaged, or
does not fit the rows that are left, is ignored by name and written again.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from model_store.disk.durable import rename
from projector.errors import ProjectorError
from projector.forgetting.gram import Gram, accepted
from projector.graph.features import FeatureMatrix

FILE = "gram"
_FORMAT = "lethe gram checkpoint 1"
_DIGEST_BYTES = 32
#: The header's length, padded with blanks, so that the matrices begin at a multiple of eight.
_HEADER_BYTES = 1024
#: Bytes written, and synced, at a time.
_STEP_BYTES = 16 << 20
#: Random vectors on which M is compared with the rows, and the difference that rounding explains (relative).
_PROBES, _ROUNDING = 4, 1e-9


class CheckpointUnusable(ProjectorError):
    """A checkpoint that is not used; the message names the file and says why."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, "Its content is computed and written again.")


def write_steps(folder: Path, gram: Gram, *, version_digest: str) -> Iterator[None]:
    """Writes the checkpoint of the version in `folder`, a few MiB at each step, and in place only at the last.

    `version_digest` is the SHA-256 of the version's manifest. Raises OSError when the disk refuses, or the version has
    been removed meanwhile.
    """
    header = {
        "format": _FORMAT,
        "version_digest": version_digest,
        "features": gram.M.shape[0],
        "rank": gram.rank,
        "sigma_ref_squared": gram.sigma_ref_squared.hex(),
        "condition_number": gram.condition_number.hex(),
        "rank_tolerance": gram.rank_tolerance.hex(),
    }
    parts = [json.dumps(header).encode().ljust(_HEADER_BYTES)]
    digest = hashlib.sha256()
    unfinished = folder / f".{FILE}"
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        offset = _write(descriptor, bytes(_DIGEST_BYTES), 0)
        for part in [*parts, *_slices(gram.M), *_slices(gram.M_pinv)]:
            digest.update(part)
            offset = _write(descriptor, part, offset)
            os.fdatasync(descriptor)
            yield
        _write(descriptor, digest.digest(), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    rename(unfinished, folder / FILE)


def read(folder: Path, *, version_digest: str, device: torch.device | str) -> Gram | None:
    """The Gram factors of the version in `folder`; None when no checkpoint was written.

    Raises CheckpointUnusable, naming the file, for one that is damaged or was written for another version.
    """
    path = folder / FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointUnusable(f"{path} cannot be read: {error.strerror}.") from error
    body = memoryview(data)[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != data[:_DIGEST_BYTES]:
        raise CheckpointUnusable(f"{path} does not match its own digest: it is truncated or altered.")
    header: dict[str, Any] = json.loads(bytes(body[:_HEADER_BYTES]))
    if header.get("format") != _FORMAT or header["version_digest"] != version_digest:
        raise CheckpointUnusable(f"{path} was not written for this version.")
    width = int(header["features"])
    values: NDArray[np.float64] = np.frombuffer(body[_HEADER_BYTES:], dtype="<f8").reshape(2, width, width)
    # A copy, because the bytes read are not writable.
    M, M_pinv = (torch.from_numpy(matrix.copy()).to(device) for matrix in values)
    return Gram(
        M,
        M_pinv,
        int(header["rank"]),
        float.fromhex(header["sigma_ref_squared"]),
        float.fromhex(header["condition_number"]),
        float.fromhex(header["rank_tolerance"]),
    )


def fits(gram: Gram, features: FeatureMatrix, in_span: NDArray[np.bool_], sigma_ref_squared: float) -> bool:
    """Whether `gram` is that of the rows `in_span` (n,) of `features`, up to rounding.

    On a few random vectors v: M v against X^T X v from the rows, and M+ as after every batch. Costs as much as reading.
    """
    if gram.M.shape[0] != features.num_features or gram.sigma_ref_squared != sigma_ref_squared:
        return False
    generator = torch.Generator().manual_seed(gram.rank)
    probes = torch.randn((gram.M.shape[0], _PROBES), dtype=torch.float64, generator=generator).to(gram.M.device)
    expected = features.transposed_matmul(features.matmul(probes), in_span)
    apart = float(torch.linalg.norm(gram.M @ probes - expected))
    return apart <= _ROUNDING * sigma_ref_squared * float(torch.linalg.norm(probes)) and accepted(gram)


def _slices(matrix: torch.Tensor) -> Iterator[bytes]:
    rows = max(1, _STEP_BYTES // (8 * matrix.shape[1]))
    for start in range(0, matrix.shape[0], rows):
        yield matrix[start : start + rows].cpu().numpy().astype("<f8", copy=False).tobytes()


def _write(descriptor: int, data: bytes, offset: int) -> int:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, offset)
        view, offset = view[done:], offset + done
    return offset
