"""Memory and processor time of a process on Linux."""

import os
from pathlib import Path


def split_memory() -> dict[str, int]:
    """Return this process's bytes by kind."""
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    found = {name.rstrip(":"): 1024 * int(size) for name, size, _ in lines}
    shared, private = (sum(found[f"{kind}_{state}"] for state in ("Clean", "Dirty")) for kind in ("Shared", "Private"))
    return {"shared": shared, "private": private, "anonymous": found["Anonymous"]}


def anonymous(pid: int) -> int:
    """Return a process's own bytes; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def processor(pid: int) -> float:
    """Return a process's processor seconds; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
