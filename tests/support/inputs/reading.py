"""What becomes of reading files, in a process of its own: a reader that damages its memory ends that alone.

As a program, `reading.py KIND FILE…` reads each file and prints a JSON object for it before it goes on to the next.
"""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from projector.errors import ExplainedError

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Outcome:
    """What became of a file: `read`, `refused`, `traceback`, or `killed` the process."""

    how: str
    told: str


def read_all(kind: str, files: Sequence[Path]) -> Iterator[tuple[Path, Outcome]]:
    """Each file with what became of it, in order."""
    left = list(files)
    while left:
        command = [sys.executable, "-m", "tests.support.inputs.reading", kind, *map(str, left)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = ran.stdout.splitlines()
        for line in lines:
            yield left.pop(0), Outcome(**json.loads(line))
        if left:
            yield left.pop(0), Outcome("killed", f"status {ran.returncode}: {ran.stderr.strip()[-300:]}")


def _dataset(path: Path) -> object:
    from model_store.datasets.load import load_dataset

    return load_dataset(str(path), data_dirs=[], download=None)


def _weights(path: Path) -> object:
    from model_store.pretrained_files import read_weights

    return read_weights(path)


def _model(path: Path) -> object:
    from model_store.replacement import check_store

    return check_store(path)


_READERS: Mapping[str, Callable[[Path], object]] = {"dataset": _dataset, "weights": _weights, "model": _model}


def _outcome(read: Callable[[Path], object], path: Path) -> Outcome:
    try:
        read(path)
    except ExplainedError as error:
        return Outcome("refused", f"{error.detail} {error.remedy}")
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a traceback to whoever named the file
        return Outcome("traceback", f"{type(error).__name__}: {error}")
    return Outcome("read", "")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in sys.argv[2:]:
        print(json.dumps(vars(_outcome(_READERS[sys.argv[1]], Path(name)))), flush=True)
