"""Examples of what the deletion routes answer, for /docs."""

from typing import Any

_ID = "0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11"
_EARLIER = "0197f3b0-11aa-7d02-8e4f-6b1c2d3e4f50"
_TIMES: dict[str, Any] = {
    "received_at": "2026-03-02T09:15:04.120000Z",
    "applied_at": "2026-03-02T09:15:04.310000Z",
    "completed_at": "2026-03-02T09:15:04.420000Z",
    "failed_at": None,
    "cancelled_at": None,
}

ACCEPTED: dict[str, Any] = {
    "id": _ID,
    "status": "queued",
    "kind": "node",
    "count": 1,
    "received_at": _TIMES["received_at"],
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
        "model_version_before": 6,
        "model_version_after": 7,
        "weights_sha256_before": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "weights_sha256_after": "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
        "rank_before": 1431,
        "rank_after": 1431,
        "directions_removed": 0,
        "deleted": 2,
        "injected_norm_before": 0.23,
        "injected_norm_after": 0.0,
        "lost_direction_norm_before": None,
        "lost_direction_norm_after": None,
        "channel_norm_before": None,
        "channel_norm_after": None,
        "span_residual": 3e-15,
        "weight_change": 0.011,
        "distance_bound_start_relative": 3e-12,
        "distance_bound_before": 4.1,
        "distance_bound_after": 2e-9,
        "distance_bound_before_relative": 0.2,
        "distance_bound_after_relative": 1e-10,
        "repair_iterations": 3,
        "repair_weight_change": 0.011,
        "repair_version": 7,
        "repair_weights_sha256": "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
        "repair_tolerance": 1e-8,
        "factor_age_s": 60.0,
        "coefficient_residual": 2e-14,
        "factor_method": "downdate",
        "durations_ms": {"project": 1.9, "repair": 410.0},
        "device": "cpu",
    },
}

#: As in lists: without its audit.
_LISTED: dict[str, Any] = {**DELETION, "audit": None}

PAGE: dict[str, Any] = {"deletions": [_LISTED], "next_cursor": None}

SEARCH: dict[str, Any] = {
    "found": [{"node": "12", "deletion": DELETION}],
    "not_found": ["57"],
}
