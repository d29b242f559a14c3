"""Generates the tables of settings.md from the settings themselves.

python -m docs.settings_table     rewrites them; a test fails while they are out of date
"""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from service.settings import OTHER_VARIABLES, Settings, setting_names, variable_name

PAGE = Path(__file__).parent / "settings.md"


def table() -> str:
    """Return one row for each setting, in the order of the class."""
    lines = ["| variable | flag of `serve` | values | default | meaning |", "| --- | --- | --- | --- | --- |"]
    for name in setting_names():
        field = Settings.model_fields[name]
        default = "" if field.default is None else f"`{field.default}`"
        flag = f"`--{name.replace('_', '-')}`"
        lines.append(f"| `{variable_name(name)}` | {flag} | {_values(field)} | {default} | {field.description} |")
    return "\n".join(lines) + "\n"


def _values(field: FieldInfo) -> str:
    """Describe the allowed values: the words of a choice, or the bounds of a number."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(field.annotation))
    bounds: dict[str, Any] = {
        bound: getattr(rule, bound) for rule in field.metadata for bound in ("gt", "ge", "le") if hasattr(rule, bound)
    }
    low = f"above {bounds['gt']:,g}" if "gt" in bounds else f"{bounds['ge']:,}" if "ge" in bounds else ""
    high = f"to {bounds['le']:,}" if "le" in bounds else "or more" if low else ""
    return f"{low} {high}".strip()


def other_variables() -> str:
    """Return one row for each variable that is not a setting."""
    lines = ["| variable | read by |", "| --- | --- |"]
    return "\n".join(lines + [f"| `{name}` | {reader} |" for name, reader in OTHER_VARIABLES.items()]) + "\n"


def between_marks(page: str, name: str, text: str) -> str:
    """Replace the text between the two marks of `name` in `page`. Raises ValueError if a mark is missing."""
    before, begin, rest = page.partition(f"<!-- {name}: begin -->\n")
    _, end, after = rest.partition(f"<!-- {name}: end -->\n")
    if not (begin and end):
        raise ValueError(f"the page has no part between two marks of {name}")
    return before + begin + text + end + after


def with_current_table(page: str) -> str:
    """Return `page` with the current tables. Raises ValueError if a mark is missing."""
    return between_marks(between_marks(page, "settings", table()), "other variables", other_variables())


if __name__ == "__main__":
    PAGE.write_text(with_current_table(PAGE.read_text()))
