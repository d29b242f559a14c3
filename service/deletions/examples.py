"""Examples of what the routes of deletions and receipts answer, for /docs."""

from typing import Any

from service.domain.figures import FIGURES

_ID = "0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11"
_EARLIER = "0197f3b0-11aa-7d02-8e4f-6b1c2d3e4f50"
_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_TIMES: dict[str, Any] = {
    "received_at": "2026-03-02T09:15:04.120000Z",
    "applied_at": "2026-03-02T09:15:04.310000Z",
    "completed_at": "2026-03-02T09:15:04.420000Z",
    "failed_at": None,
    "cancelled_at": None,
    "due_at": "2026-04-01T09:15:04.120000Z",
    "late": False,
    "handled_at": None,
    "handled_by": None,
    "handles": [],
}

ACCEPTED: dict[str, Any] = {
    "id": _ID,
    "status": "queued",
    "kind": "node",
    "count": 1,
    "received_at": _TIMES["received_at"],
    "due_at": _TIMES["due_at"],
    "links": {"self": f"/deletions/{_ID}"},
    "salts": {
        "nodes": {"57": "5f1d7a84db00d2fce00b31a7fc73224f"},
        "reference": "c0535e4be2b79ffd93291305436bf889",
    },
    "already_deleted": {"12": _EARLIER},
}

DELETION: dict[str, Any] = {
    "id": _ID,
    "status": "completed",
    "kind": "node",
    "count": 2,
    "reference": "DSR-17",
    **_TIMES,
    "guarantee": "retrained",
    "repair": "converged",
    "explanation": "The projection changed nothing: … The repair did the forgetting: …",
    "failure": None,
    "already_deleted_by": None,
    "links": {"self": f"/deletions/{_ID}"},
    "audit": {
        "batch": {"id": "0197f3c2-7000-7aaa-8bbb-3c4d5e6f7a8b", "requests": 5, "nodes": 9, "features": 0, "edges": 2},
        **{name: figure.example for name, figure in FIGURES.items() if figure.in_answers},
    },
}

#: As in lists: without its audit.
_LISTED: dict[str, Any] = {**DELETION, "audit": None}

PAGE: dict[str, Any] = {"deletions": [_LISTED], "next_cursor": None}

SEARCH: dict[str, Any] = {
    "found": [{"node": "12", "deletion": DELETION}],
    "not_found": ["57"],
}

RECEIPT: dict[str, Any] = {
    "format": "lethe-receipt/1",
    "request_id": _ID,
    "summary": {
        "model": "cora",
        "kind": "node",
        "count": 1,
        "received_at": _TIMES["received_at"],
        "applied_at": _TIMES["applied_at"],
        "status": "applied",
        "what_was_done": "The projection changed nothing: no direction was supported by these nodes alone.",
        "guarantee": "span",
        "figures": {"injected_norm_before": 0.23, "injected_norm_after": 0},
        "since": [],
    },
    "entries": [
        {
            "leaf": {
                "format": "lethe-leaf/1",
                "index": 3,
                "event": 4,
                "request_id": _ID,
                "type": "applied",
                "time": _TIMES["applied_at"],
                "details": {"injected_norm_before": 0.23, "injected_norm_after": 0},
                "request": {"model": "cora", "kind": "node", "count": 1, "received_at": _TIMES["received_at"]},
                "subjects": [_DIGEST],
                "reference": None,
            },
            "inclusion_proof": [_DIGEST, _DIGEST],
        }
    ],
    "since": [],
    "checkpoint": "lethe/2c26b46b68ffc68f\n4\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n— …\n",
    "public_keys": ["lethe/2c26b46b68ffc68f+033de0ae+Ac4zjqAGeLXHbjg3r4eNVFCSZ1dPLrHh2iDPVlGJWJUb"],
}
