"""Errors of the mathematics. Each ends with a remedy."""


class ExplainedError(Exception):
    """Base of every typed error, including the service's: what is wrong (`detail`) and what to do (`remedy`)."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(f"{detail} {remedy}")
        self.detail = detail
        self.remedy = remedy


class ProjectorError(ExplainedError):
    """Base of the errors of `projector` and of the packages built on it."""


class GraphError(ProjectorError):
    """The graph cannot be trained on: asymmetric edges, NaN features, labels out of range, …"""


class MissingPackage(ProjectorError):
    """An optional package that a function needs is not installed."""


class TrainingError(ProjectorError):
    """Training cannot start, diverged, or did not reach its tolerance."""


class RankError(ProjectorError):
    """The Gram matrix cannot determine the rank of the features, even with rescaled columns."""


class PromiseError(ProjectorError):
    """A publication cannot keep its privacy promise, or no publication could."""


class WorkersLost(ProjectorError):
    """A worker died, hung or failed on its own. This group of workers can compute nothing more."""


class WorkersDiffer(ProjectorError):
    """The workers prepared different models."""


class DeviceError(ProjectorError):
    """The requested device is missing or too small."""
