"""Bodies of deletion requests, and checks of refusals."""

from typing import Any

import httpx2

from service.domain.scopes import Scope

WRITER = (Scope.DELETIONS_WRITE, Scope.DELETIONS_READ)


def node_body(*nodes: str, reference: str | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {"kind": "node", "nodes": list(nodes)}
    return body if reference is None else body | {"reference": reference}


def refused(response: httpx2.Response, status: int, slug: str) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    document: dict[str, Any] = response.json()
    assert (response.status_code, document["type"]) == (status, f"urn:lethe:problem:{slug}"), response.text
    assert document["remedy"]
    return document


def edge_body(*edges: tuple[str, str]) -> dict[str, Any]:
    return {"kind": "edge", "edges": [list(edge) for edge in edges]}


def features_body(*nodes: str) -> dict[str, Any]:
    return {"kind": "features", "nodes": list(nodes)}


#: May add and correct, and may know of deletions.
GRAPH_WRITER = (*WRITER, Scope.GRAPH_WRITE)


def new_node(node: str, **more: Any) -> dict[str, Any]:
    """A node to add, with the columns of the harness's model."""
    return {"id": node, "features": {"0": 1.0, "2": 0.5}, **more}
