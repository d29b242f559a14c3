"""Projector: linear graph neural networks that forget and learn nodes, edges and features, with a proven error bound.

    model = fit(data)                    # a torch_geometric Data, from_arrays(edges, features, labels), or
                                         # from_tables(users, follows): polars, DuckDB, pandas or pyarrow
    model, report = model.forget(nodes=[3, 14])     # the weights of retraining without them, to report.bound_after
    model, report = model.update(add_nodes=features, add_edges=[[2708, 0]])     # additions, corrections, removals
    model.predict([0, 1, 2])

See `fit`, `from_arrays`, `from_tables`, `Model`, `Report`, `SpanFigures`, `ModelSpec`, `Certificate`, `ProjectorError`,
and for predictions with exported weights `load_exported` and `ExportedModel`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from projector.errors import ProjectorError
    from projector.exported import ExportedModel, load_exported
    from projector.forgetting.certificate import Certificate
    from projector.graph.from_data import from_arrays
    from projector.graph.tables import from_tables
    from projector.model import Model, Report, SpanFigures, fit
    from projector.network.spec import ModelSpec

__all__ = [
    "Certificate",
    "ExportedModel",
    "Model",
    "ModelSpec",
    "ProjectorError",
    "Report",
    "SpanFigures",
    "fit",
    "from_arrays",
    "from_tables",
    "load_exported",
]

_FROM = {
    "Certificate": "projector.forgetting.certificate",
    "ModelSpec": "projector.network.spec",
    "from_arrays": "projector.graph.from_data",
    "from_tables": "projector.graph.tables",
    "ProjectorError": "projector.errors",
    "ExportedModel": "projector.exported",
    "load_exported": "projector.exported",
}


def __getattr__(name: str) -> Any:
    """Import the public names lazily, so that reading an enum does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module 'projector' has no attribute {name!r}")
    return getattr(import_module(_FROM.get(name, "projector.model")), name)
