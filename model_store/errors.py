"""Errors of storing and loading a model. Each ends with a remedy."""

from projector.errors import ProjectorError


class DatasetNotFound(ProjectorError):
    """No dataset has that name or path. The detail lists the searched places."""


class StoreDamaged(ProjectorError):
    """A file of the store is missing, truncated or altered. The detail names it."""


class NotAStore(ProjectorError):
    """The folder or file is not a model store of a format that this version reads."""


class NoModel(NotAStore):
    """The folder contains neither a model nor remains of one."""


class ImportUnderWay(ProjectorError):
    """Another process is copying a model to the same place."""
