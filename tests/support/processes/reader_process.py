"""A process that reads and does nothing else: asks itself again and again, and says whenever the answer changes.

Arguments: database, home, model, node. Each line: the version that answers now ("none" while none does), and the
boottime at which what answered before was asked for the last time. Version v must answer with v/1000.
"""

import asyncio
import sys
import threading
import time
from pathlib import Path

import structlog

from service.boottime import boottime
from service.db.engine import create_engine
from service.errors import Unavailable
from service.publication.following import Follower
from service.publication.reader import Reader
from tests.support.service.publications import predicted


def answered(reader: Reader, node: str) -> str:
    """What answers now."""
    try:
        prediction = predicted(reader, node)
    except Unavailable:
        return "none"
    if prediction is None or prediction.probabilities["red"] != prediction.model_version / 1000:
        return f"wrong: {prediction}"
    return str(prediction.model_version)


def ask(reader: Reader, node: str) -> None:
    """Ask for good."""
    now, last_asked = "", 0.0
    while True:
        asked = boottime()
        answer = answered(reader, node)
        if answer != now:
            sys.stdout.write(f"{answer} {last_asked}\n")
            sys.stdout.flush()
        now, last_asked = answer, asked
        # The event loop beside it must be able to follow.
        time.sleep(0.0005)


async def follow(database_url: str, home: Path, model: str, node: str) -> None:
    """Follow for good."""
    reader, engine = Reader(), create_engine(database_url, pool_size=1)
    threading.Thread(target=ask, args=(reader, node), daemon=True).start()
    await Follower(engine, reader, home, model).run(asyncio.Event())


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(follow(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
