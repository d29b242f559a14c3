"""`lethe audit leftovers`: search all of Lethe's files for traces of deleted nodes."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from model_store.errors import NoModel
from model_store.work import Work
from service.cli.console import ExitStatus, Json, interrupted, note, print_result, read_lines, report, show_progress
from service.cli.server import Home, Model, settings_of
from service.domain.formats import plural
from service.errors import ConfigurationError
from service.settings import Settings

if TYPE_CHECKING:
    import scipy.sparse as sp
    from numpy.typing import NDArray

    from model_store.store import Store
    from projector.graph.graph import Graph
    from service.cli.byte_search import Search, StoredRows, Trace

#: Most findings printed; all are counted.
_SHOWN = 50
#: Most pairs of equal rows printed.
_SHOWN_EQUAL = 5


def leftovers(
    ids: Annotated[Path | None, typer.Option(metavar="FILE", help="Ids, one per line.")] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Rows of features: an .npy array (k, d), or the .npz of a dataset, from which the rows of --ids "
            "are taken.",
        ),
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Another folder to search, such as the data directory of your own Postgres."),
    ] = None,
    model: Model = None,
    home: Home = Path("var"),
    as_json: Json = False,
) -> None:
    """Search every byte of the model, LETHE_HOME, the publication and the private servers' data.

    Prints file and offset of each trace and exits with 1. Stop Lethe first: a running Postgres holds data in memory
    that is not in a file yet. If live nodes share the deleted features, give the --ids of all rows.

    Example: [bold]./lethe audit leftovers --ids forgotten.txt --features forgotten.npy[/bold]
    """
    from model_store.store import Store
    from service.cli.byte_search import Search, files_below, patterns_of_ids, patterns_of_rows
    from service.predictions.layout import Layout

    if ids is None and features is None:
        raise ConfigurationError("There is nothing to search for.", "Give --ids, --features, or both.")
    settings = settings_of(home, model)
    if not settings.model_dir.is_dir():
        raise NoModel(
            f"{settings.model_dir} contains no model, so the served model could not be searched.",
            "Name its folder with --model, or start Lethe.",
        )
    named = [] if ids is None else read_lines(ids)
    rows = None if features is None else _rows(features, named)
    of_ids, of_rows = patterns_of_ids(named), None if rows is None else patterns_of_rows(rows)
    search = Search([*of_ids.patterns, *(of_rows.patterns if of_rows else ())])
    shared = [publication.path for publication in Layout.all_of(settings.home)]
    folders = [folder for folder in (settings.home, settings.model_dir, *shared, *(also or [])) if folder.exists()]
    if missing := [folder for folder in also or [] if not folder.is_dir()]:
        raise ConfigurationError(f"{missing[0]} is not a folder.", "Give a readable folder.")
    files = list(files_below(folders, but=[path for path in (ids, features) if path is not None]))
    left = "Nothing was changed and there is no result. Run the same command again."
    with interrupted(lambda: left), show_progress("Searching") as work:
        found, unread = _search(search, files, work)
        work.begin("Reading the model")
        store = Store.open(settings.model_dir)
        graph = store.load_base(work).graph
        work.begin("Searching the model for the ids and rows")
        own = _own_rows(store, graph, named, rows)
        found = [one for one in found if not own.explain(one)]
        in_model, equal = _in_model(settings.model_dir, graph, named, rows, own)
    searched = sum(path.stat().st_size for path in files if path.exists())
    sought = 0 if rows is None else rows.shape[0]
    same = list(_about_equal(equal))
    warnings = list(_warnings(settings, of_ids.indistinct, of_rows.indistinct if of_rows else 0, bool(also)))
    document = {
        "traces": [{"path": str(one.path), "offset": one.offset, "what": one.what} for one in found],
        "in_model": in_model,
        "no_traces": same,
        "warnings": warnings,
        "unread": [{"path": str(path), "error": error} for path, error in unread],
        "files": len(files),
        "bytes": searched,
        "patterns": len(search),
        "ids": len(named),
        "rows": sought,
    }
    total = (
        f"{plural(len(found) + len(in_model), 'trace')} in {plural(len(files), 'file')} of "
        f"{searched / (1 << 20):.1f} MiB, searched for {plural(len(search), 'pattern')} of "
        f"{plural(len(named), 'id')} and {plural(sought, 'row')} of features."
    )
    print_result(document, as_json, *_lines(found, in_model), total)
    for line in [*same, *(f"warning: {line}" for line in warnings)]:
        note(line)
    for path, error in unread:
        report(f"{path} could not be read: {error}.", "Run the command as a user who can read all of Lethe's files.")
    if found or in_model or unread:
        raise typer.Exit(ExitStatus.FAILED)


def _rows(path: Path, ids: Sequence[str]) -> "NDArray[Any] | sp.csr_array":
    """Read the rows of features in a file."""
    import numpy as np

    from model_store.disk.untrusted_arrays import read_npy

    if path.suffix == ".npy":
        rows = read_npy(path)
        if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.floating):
            raise ConfigurationError(
                f"{path} is not an array of floats with shape (k, d).", "Save the rows with numpy.save."
            )
        return rows
    if not ids:
        raise ConfigurationError(f"The rows of {path} have no ids.", "Name their ids with --ids.")
    from model_store.datasets.load import load_dataset

    graph = load_dataset(str(path), data_dirs=[], dedupe=True, undirected=True)
    chosen = graph.node_ids.rows_of(ids)
    return graph.features[chosen[chosen >= 0]]


def _search(search: "Search", files: Sequence[Path], work: Work) -> "tuple[list[Trace], list[tuple[Path, str]]]":
    found: list[Trace] = []
    unread: list[tuple[Path, str]] = []
    work.begin(f"Searching {len(files)} files", sum(path.stat().st_size for path in files if path.exists()))
    for path in files:
        try:
            found.extend(search.file(path, work))
        except FileNotFoundError:
            # A running Postgres removes its own files during the search.
            continue
        except OSError as error:
            unread.append((path, error.strerror or type(error).__name__))
    return found, unread


def _own_rows(
    store: "Store", graph: "Graph", ids: Sequence[str], rows: "NDArray[Any] | sp.csr_array | None"
) -> "StoredRows":
    """Return the other live nodes that have features; none if the owners of the rows are unknown."""
    import numpy as np

    from service.cli.byte_search import StoredRows

    state = store.read_version(store.current())
    own = np.zeros(graph.nodes, dtype=np.bool_)
    if rows is not None and rows.shape[0] <= len(ids):
        own = state.live & state.featured
        sought = graph.node_ids.rows_of(ids)
        own[sought[sought >= 0]] = False
    return StoredRows(own, store.feature_slots())


def _in_model(
    folder: Path, graph: "Graph", ids: Sequence[str], rows: "NDArray[Any] | sp.csr_array | None", own: "StoredRows"
) -> tuple[list[str], list[tuple[int, int]]]:
    """Search the model through its own readers: this also finds short ids, and sparse features in any order.

    Returns the traces, and the pairs of rows equal to those of a live node, which are not traces.
    """
    traces = [
        f"{folder}: id on line {line} matches row {row}"
        for line, row in enumerate(graph.node_ids.rows_of(ids), start=1)
        if row >= 0
    ]
    equal = []
    if rows is not None and rows.shape[1] == graph.num_features:
        for number, row in _same_content(rows, graph):
            if own.own[row]:
                equal.append((number, row))
            else:
                traces.append(f"{folder}: features of row {number} match row {row}")
    return traces, equal


def _about_equal(equal: Sequence[tuple[int, int]]) -> Iterator[str]:
    if equal:
        some = ", ".join(f"{number} and {row}" for number, row in equal[:_SHOWN_EQUAL])
        yield (
            f"Not traces: {plural(len({number for number, _ in equal}), 'row')} of features, equal to those of live "
            f"nodes (rows of the file and of the model: {some}{', …' if len(equal) > _SHOWN_EQUAL else ''})."
        )


def _same_content(rows: "NDArray[Any] | sp.csr_array", graph: "Graph") -> list[tuple[int, int]]:
    """Return each row of `rows` with every row of the graph's features that has the same non-empty content."""
    asked: dict[bytes, list[int]] = {}
    for number, content in enumerate(_contents(rows)):
        if content:
            asked.setdefault(content, []).append(number)
    stored = enumerate(_contents(graph.features))
    return sorted((number, row) for row, content in stored for number in asked.get(content, ()))


def _contents(rows: "NDArray[Any] | sp.csr_array") -> Iterator[bytes]:
    """Yield each row's non-zero columns and values in float32, its least precise form; empty for empty rows."""
    import numpy as np
    import scipy.sparse as sp

    matrix = sp.csr_array(rows)
    matrix.sort_indices()
    for start, end in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        held = matrix.data[start:end] != 0
        columns = matrix.indices[start:end][held].astype("<i8")
        yield columns.tobytes() + np.asarray(matrix.data[start:end][held], dtype="<f4").tobytes()


def _lines(found: "Sequence[Trace]", in_model: Sequence[str]) -> Iterator[str]:
    lines = [*in_model, *(f"{one.path}: byte {one.offset}: {one.what}" for one in found)]
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"… and {len(lines) - _SHOWN} more"


def _warnings(settings: Settings, short_ids: int, common_rows: int, has_more: bool) -> Iterator[str]:
    """Yield warnings about places and patterns that the search does not cover."""
    from model_store.datasets.load import default_data_dirs

    if short_ids:
        yield (
            f"{short_ids} ids are shorter than 8 bytes. They were only looked up in the model: in other files "
            "they would be found by chance."
        )
    if common_rows:
        yield (
            f"Only compared with the rows of the model: {plural(common_rows, 'row')} of features without distinctive "
            "values."
        )
    for name, value in (("DATABASE_URL", settings.database_url), ("REDIS_URL", settings.redis_url)):
        if value is not None and not has_more:
            yield f"{name} is a server of your own. Its files were not searched: add their folder with --also."
    sources = [folder for folder in default_data_dirs(os.environ) if folder.is_dir() and any(folder.iterdir())]
    yield (
        "training datasets, backups and folders written by `train` are yours to erase and were not searched"
        + (f": {', '.join(str(folder) for folder in sources)}" if sources else "")
        + "."
    )
