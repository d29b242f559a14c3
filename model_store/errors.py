"""Errors of keeping and loading a model; each ends in what the user can do."""

from projector.errors import ProjectorError


class DatasetNotFound(ProjectorError):
    """No dataset of that name or path; the detail lists where it was looked for."""


class StoreDamaged(ProjectorError):
    """A file of the store is missing, truncated or altered; the detail names it."""


class NotAStore(ProjectorError):
    """A folder or file that is not a model store of a format this version reads."""


class NoModel(NotAStore):
    """There is no model there, nor what is left of one."""


class ImportUnderWay(ProjectorError):
    """Another process copies a model for the same place."""
