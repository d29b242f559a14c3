"""Counts the lines of code in a folder, without blank lines, comments and docstrings.

`python -m benchmarks.code_lines FOLDER...` prints a line for each folder, covering its Python and SQL without
migrations, which are kept for good. A line of Python counts if it holds a token other than a comment. Every line of a
string that is not a docstring counts.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

_CODE, _MIGRATIONS = (".py", ".sql"), "migrations"
_NOTHING = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(file: Path) -> int:
    """Return the number of lines with code in a file."""
    source = file.read_text()
    if file.suffix == ".sql":
        lines_of_sql = (line.strip() for line in source.splitlines())
        return sum(bool(line) and not line.startswith("--") for line in lines_of_sql)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOTHING:
            lines.update(range(token.start[0], token.end[0] + 1))
    blank = {number for number, line in enumerate(source.splitlines(), 1) if not line.strip()}
    return len(lines - _docstrings(ast.parse(source)) - blank)


def _docstrings(module: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def main(folders: list[str]) -> None:
    """Print the count of each folder."""
    for folder in folders:
        inside = (file for file in sorted(Path(folder).rglob("*")) if _MIGRATIONS not in file.parts)
        files = [file for file in inside if file.suffix in _CODE]
        print(f"{folder}: {sum(map(code_lines, files))} in {len(files)} files")


if __name__ == "__main__":
    main(sys.argv[1:])
