"""Every error has a remedy: each place that raises one gives a sentence, and HTTP passes it on."""

import ast
import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from starlette.responses import Response

import model_store
import service
from projector.errors import ExplainedError
from service.errors import LetheError
from service.web import problems
from tests.support.preloaded import ROOT

SOURCES = sorted(path for folder in ("service", "model_store", "projector") for path in (ROOT / folder).rglob("*.py"))
#: Remedies passed on unchanged; they are checked where they are made.
PASSED_ON = {"remedy", "error.remedy", "stall.remedy", "' '.join(dict.fromkeys((check.remedy for check in failing)))"}


def all_of(base: type[Exception]) -> Iterator[type[Exception]]:
    """`base` and every class derived from it."""
    yield base
    for derived in base.__subclasses__():
        yield from all_of(derived)


def error_types() -> list[type[Exception]]:
    """Return every typed error, wherever it is declared."""
    for package in (service, model_store):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    return sorted({*all_of(ExplainedError)}, key=lambda one: one.__name__)


TYPES = error_types()
OVER_HTTP = [one for one in TYPES if issubclass(one, LetheError) and one.status != 500]


def remedies(path: Path, nodes: list[ast.AST]) -> Iterator[ast.expr]:
    """Yield the remedies in a module's calls that make an error or a problem document."""
    # An error with its own text passes it to its base class.
    by_itself = {one.__name__ for one in TYPES if "__init__" in vars(one)} - {"ExplainedError", "LetheError"}
    names = {one.__name__ for one in TYPES} - by_itself
    bases = {
        call
        for declared in nodes
        if isinstance(declared, ast.ClassDef) and declared.name in by_itself
        for call in ast.walk(declared)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__"
    }
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        place = 1 if called in names or node in bases else 4 if called == "problem" else None
        if place is None:
            continue
        named = [keyword.value for keyword in node.keywords if keyword.arg == "remedy"]
        if named or len(node.args) > place:
            yield named[0] if named else node.args[place]
        elif not any(isinstance(argument, ast.Starred) for argument in node.args):
            raise AssertionError(f"{path}:{node.lineno}: {called} is made without a remedy")


def constants_of(nodes: list[ast.AST]) -> dict[str, ast.expr]:
    """Return the last value of each name in a module or its functions."""
    found: dict[str, ast.expr] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                found |= {target.id: value for target in targets if isinstance(target, ast.Name)}
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value) if name in found:
                found[name] = ast.copy_location(ast.BinOp(found[name], ast.Add(), value), node)
    return found


def texts(place: str, remedy: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    """Yield the possible texts of a remedy, with `…` for parts filled in later."""
    match remedy:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
        case ast.IfExp(body=body, orelse=orelse):
            yield from texts(place, body, constants)
            yield from texts(place, orelse, constants)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from (
                one + other for one in texts(place, left, constants) for other in texts(place, right, constants)
            )
        case ast.Name(id=name) if name in constants:
            yield from texts(place, constants[name], constants)
        case _:
            if ast.unparse(remedy) not in PASSED_ON:
                raise AssertionError(f"{place}: what is the remedy {ast.unparse(remedy)}?")


def test_wherever_an_error_is_made_its_remedy_is_a_sentence() -> None:
    trees = {path.relative_to(ROOT): list(ast.walk(ast.parse(path.read_text()))) for path in SOURCES}
    of_modules = {".".join(path.with_suffix("").parts): constants_of(nodes) for path, nodes in trees.items()}
    for path, nodes in trees.items():
        imported = {
            alias.name: value
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module and node.module in of_modules
            for alias in node.names
            if (value := of_modules[node.module].get(alias.name)) is not None
        }
        constants = imported | of_modules[".".join(path.with_suffix("").parts)]
        for remedy in remedies(path, nodes):
            place = f"{path}:{remedy.lineno}"
            for text in texts(place, remedy, constants):
                assert text.endswith((".", "…")), f"{place}: {text!r}"
                assert text[0].isupper() or text[0] in "`…", f"{place}: {text!r}"
                assert " " in text, f"{place}: {text!r}"


def made(error: type[LetheError], detail: str, remedy: str) -> LetheError:
    """Make an error of this type, including those with their own text."""
    one = error.__new__(error)
    LetheError.__init__(one, detail, remedy)
    return one


def document(response: Response) -> dict[str, object]:
    found: dict[str, object] = json.loads(bytes(response.body))
    return found


def test_over_http_every_error_has_a_slug_of_its_own_and_passes_its_remedy_on() -> None:
    for error in OVER_HTTP:
        body = document(problems.of_error(made(error, "It was so.", "Do this.")))
        assert (body["detail"], body["remedy"], body["status"]) == ("It was so.", "Do this.", error.status), error
        assert body["type"] == f"urn:lethe:problem:{error.slug}"
        assert all(error.slug != other.slug for other in OVER_HTTP if other.title != error.title), error


def test_an_internal_error_is_hidden_and_still_says_what_to_do() -> None:
    for error in (one for one in TYPES if issubclass(one, LetheError) and one.status == 500):
        body = document(problems.of_error(made(error, "A secret of the machine.", "Look at /etc.")))
        assert body["type"] == "urn:lethe:problem:internal-error", error
        assert "X-Request-ID" in str(body["remedy"]), error
        assert "secret" not in str(body), error


def test_what_the_framework_refuses_by_itself_comes_with_a_remedy_too() -> None:
    for _, _, detail, remedy in problems.FRAMEWORK_ERRORS.values():
        assert detail.endswith(".")
        assert remedy.endswith(".")
