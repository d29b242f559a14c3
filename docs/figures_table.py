"""Generates the table of an audit's figures in api.md from the figures themselves.

python -m docs.figures_table     rewrites it; a test fails while it is out of date
"""

from pathlib import Path

from docs.settings_table import between_marks
from service.domain.figures import FIGURES, Form

PAGE = Path(__file__).parent / "api.md"


def table() -> str:
    """Return one row for each figure in answers, in their order."""
    lines = ["| field of `audit` | unit | meaning |", "| --- | --- | --- |"]
    for name, figure in FIGURES.items():
        if figure.in_answers:
            unit = "share" if figure.form is Form.PERCENT else figure.unit
            limit = "" if figure.limit is None else f" More than {figure.limit:g} is not rounding."
            lines.append(f"| `{name}` | {unit} | {figure.description}{limit} |")
    return "\n".join(lines) + "\n"


def with_current_table(page: str) -> str:
    """Return `page` with the current table. Raises ValueError if a mark is missing."""
    return between_marks(page, "figures", table())


if __name__ == "__main__":
    PAGE.write_text(with_current_table(PAGE.read_text()))
