"""Generates the `./lethe reproduce` tables of benchmarks.md from the results in `benchmarks/results`.

python -m docs.reproduce_table     rewrites them; a test fails while they are out of date
"""

from pathlib import Path

from benchmarks.report import attacks, field, tables
from benchmarks.report.headline import headline
from benchmarks.report.results import LETHE, Results, called, percent, spread
from benchmarks.report.section import Table
from benchmarks.reproduce import RESULTS
from docs.settings_table import between_marks

PAGE = Path(__file__).parent / "benchmarks.md"


def with_current_table(page: str) -> str:
    """Return `page` with the current tables. Raises ValueError if a mark is missing."""
    results = Results.of(RESULTS)
    for name, table in (
        ("headline", headline(results)),
        ("field", field.table(results)),
        ("injection", _injection(results)),
        ("accuracy", tables.accuracy(results)),
        ("losses", tables.losses(results)),
        ("ridge", tables.ridge(results)),
        ("attacks", attacks.exact_methods(results)),
        ("identity", tables.identity(results)),
        ("repair", tables.repair(results)),
    ):
        page = between_marks(page, name, _markdown(table))
    return page


def _injection(results: Results) -> Table:
    """Return the feature injection test of the projection, a row for each dataset and share."""
    rows = []
    for dataset in results.datasets("injection"):
        for case in results.cases("injection", dataset):
            key = ("injection", dataset, LETHE, case)
            before, after = (results.values(*key, f"channel_norm_{when}") for when in ("before", "after"))
            if before:
                accuracies = [percent(results.values(*key, f"accuracy_{when}")) for when in ("before", "after")]
                rows.append([called(dataset), f"{float(case):.0%}", spread(before), spread(after), *accuracies])
    return Table(("dataset", "deleted", "channel norm before", "after", "test accuracy before, %", "after, %"), rows)


def _markdown(table: Table) -> str:
    lines = [table.head, ["---", *["---:"] * (len(table.head) - 1)], *table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(with_current_table(PAGE.read_text()))
