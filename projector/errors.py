"""Errors of the mathematics; each ends in what the user can do."""


class ExplainedError(Exception):
    """Base of every typed error, also of the service's: what was wrong (`detail`), what to do (`remedy`)."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(f"{detail} {remedy}")
        self.detail = detail
        self.remedy = remedy


class ProjectorError(ExplainedError):
    """Base of the errors of `projector` and of what is built on it."""


class GraphError(ProjectorError):
    """A graph that cannot be trained on: asymmetric edges, NaN features, labels out of range, …"""


class TrainingError(ProjectorError):
    """Training cannot start, diverged, or did not reach its tolerance."""


class RankError(ProjectorError):
    """The Gram matrix cannot tell the rank of the features, even with rescaled columns."""


class PromiseError(ProjectorError):
    """What is to be published cannot keep what was promised of it, or nothing could."""


class WorkersLost(ProjectorError):
    """One of several workers died, hung or failed by itself; nothing more can be computed by this group of them."""


class WorkersDiffer(ProjectorError):
    """A worker has made another model ready than the others."""


class DeviceError(ProjectorError):
    """The device asked for is not there, or too small."""
