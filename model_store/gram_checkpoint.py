"""The Gram factors of a version, stored beside its weights so that a restart need not compute them again.

    versions/<version>-<fencing>/gram        SHA-256 of what follows, then a header, M and M+ as float64

They are traces of the version's data, so they are part of its folder and leave the disk with it. A checkpoint serves
only the version it was written for, and nothing depends on it. A damaged one, or one that does not fit the remaining
rows, is reported by name, ignored and rewritten.
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
from projector.forgetting.factors import whole
from projector.forgetting.gram import Gram, accepted
from projector.graph.features import FeatureMatrix

FILE = "gram"
_FORMAT = "lethe gram checkpoint 1"
_DIGEST_BYTES = 32
#: Length of the padded header, which aligns the matrices to eight bytes.
_HEADER_BYTES = 1024
#: Bytes written and synced at a time.
_STEP_BYTES = 16 << 20
#: Random vectors for comparing M with the rows, and the relative difference that rounding explains.
_PROBES, _ROUNDING = 4, 1e-9


class CheckpointUnusable(ProjectorError):
    """A checkpoint is not used; the message names the file and the reason."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, "Its content is computed and written again.")


def write_steps(folder: Path, gram: Gram, *, version_digest: str) -> Iterator[None]:
    """Write the checkpoint of the version in `folder`, a few MiB per step. It appears only at the last step.

    `version_digest` is the SHA-256 of the version's manifest. Raises OSError if the disk refuses, or if the version was
    removed meanwhile.
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
        for part in [*parts, *_slices(whole(gram.M)), *_slices(whole(gram.M_pinv))]:
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
    """Return the Gram factors of the version in `folder`; None if it has no checkpoint.

    Raises CheckpointUnusable, naming the file, if it is damaged or was written for another version.
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
    # Copy, because the bytes read are not writable.
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
    """Return whether `gram` belongs to the rows `in_span` (n,) of `features`, up to rounding.

    Compares M v with X^T X v from the rows on a few random vectors v, and checks M+ as after every batch. Costs as much
    as reading.
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
