"""A process that only reads: it asks itself continually, and reports every change of the answer.

Arguments: home, node. Each line: the version that answers now ("none" without an answer), and the boottime of the last
question that the previous version answered. Version v must answer with v/1000.
"""

import sys
import time
from pathlib import Path

from service.db.clock import boottime
from service.errors import Unavailable
from service.predictions.reader import Reader
from tests.support.service.publications import admitted, predicted


def answered(reader: Reader, node: str) -> str:
    """Return the version that answers now."""
    try:
        prediction = predicted(reader, node)
    except Unavailable:
        return "none"
    if prediction is None or prediction.probabilities["red"] != prediction.model_version / 1000:
        return f"wrong: {prediction}"
    return str(prediction.model_version)


def ask(reader: Reader, node: str) -> None:
    """Ask forever."""
    now, last_asked = "", 0.0
    while True:
        asked = boottime()
        answer = answered(reader, node)
        if answer != now:
            sys.stdout.write(f"{answer} {last_asked}\n")
            sys.stdout.flush()
        now, last_asked = answer, asked
        time.sleep(0.0005)


if __name__ == "__main__":
    ask(admitted(Path(sys.argv[1])), sys.argv[2])
