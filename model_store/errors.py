"""Errors of building, keeping and loading a model; each ends in what the user can do."""


class ModelStoreError(Exception):
    """Base of the errors of `model_store`: what was wrong (`detail`) and what to do (`remedy`)."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(f"{detail} {remedy}")
        self.detail = detail
        self.remedy = remedy


class GraphError(ModelStoreError):
    """A graph that cannot be trained on: asymmetric edges, NaN features, labels out of range, …"""


class DatasetNotFound(ModelStoreError):
    """No dataset of that name or path; the detail lists where it was looked for."""


class TrainingError(ModelStoreError):
    """Training cannot start, diverged, or did not reach its tolerance."""


class RankError(ModelStoreError):
    """The Gram matrix cannot tell the rank of the features, even with rescaled columns."""


class DeviceError(ModelStoreError):
    """The device asked for is not there, or too small."""


class StoreDamaged(ModelStoreError):
    """A file of the store is missing, truncated or altered; the detail names it."""


class StoreForeign(ModelStoreError):
    """A folder or file that is not a model store of a format this version reads."""
