"""Which Lethe this is."""

#: As in `pyproject.toml`.
VERSION = "0.1.0"
