"""Draws the trace of a deletion in traces.md, from spans that a collector received.

python -m docs.trace_drawing     rewrites it; a test fails while it is out of date

`python -m benchmarks.performance.service.traces record` makes the export that it draws.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from docs.settings_table import between_marks

PAGE = Path(__file__).parent / "traces.md"
EXPORT = Path(__file__).parents[1] / "benchmarks" / "results" / "trace.json"
#: Characters of the time line.
_WIDTH = 60


def drawing() -> str:
    """Return a line for each span, below its parent: name, process, start and duration (ms), place on the time line."""
    spans = [json.loads(line) for line in EXPORT.read_text().splitlines()]
    first, last = min(span["start"] for span in spans), max(span["end"] for span in spans)
    per_ns = _WIDTH / (last - first)
    rows = [f"{'span':<28}{'process':<11}{'start':>8}{'ms':>9}"]
    for depth, span in _below("", spans):
        name = "  " * depth + span["name"]
        start, length = span["start"] - first, span["end"] - span["start"]
        begin = min(int(start * per_ns), _WIDTH - 1)
        bar = " " * begin + "█" * max(1, round(length * per_ns))
        rows.append(f"{name:<28}{span['process']:<11}{start / 1e6:>8.1f}{length / 1e6:>9.1f}  {bar[:_WIDTH]}".rstrip())
    return "\n".join(("```text", *rows, "```", ""))


def _below(parent: str, spans: Sequence[dict[str, Any]], depth: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    for span in sorted((one for one in spans if one["parent"] == parent), key=lambda one: (one["start"], one["end"])):
        yield depth, span
        yield from _below(span["span"], spans, depth + 1)


def with_current_table(page: str) -> str:
    """Return `page` with the current drawing. Raises ValueError if a mark is missing."""
    return between_marks(page, "trace", drawing())


if __name__ == "__main__":
    PAGE.write_text(with_current_table(PAGE.read_text()))
