"""Which files are tables, by their names."""

from pathlib import Path

PARQUET, ARROW = (".parquet", ".pq"), (".feather", ".arrow", ".ipc", ".arrows")
CSV, PACKED = (".csv", ".tsv"), (".gz", ".bz2", ".zst")
SUFFIXES = (*PARQUET, *ARROW, *CSV)


def is_table(path: Path) -> bool:
    """Return whether the name of a file is that of a table."""
    return suffix_of(path) in SUFFIXES


def suffix_of(path: Path) -> str:
    """Return the suffix of a file in lower case; `.csv` for `users.csv.gz`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = len(suffixes) > 1 and suffixes[-1] in PACKED and suffixes[-2] in CSV
    return suffixes[-2] if packed else suffixes[-1] if suffixes else ""
