"""An example of a receipt, for /docs."""

from typing import Any

_ID = "0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11"
_RECEIVED, _APPLIED = "2026-03-02T09:15:04.120000Z", "2026-03-02T09:15:04.310000Z"
_EXPLANATION = "The projection changed nothing: no direction was supported by these nodes alone."
_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

RECEIPT: dict[str, Any] = {
    "format": "lethe-receipt/1",
    "request_id": _ID,
    "summary": {
        "model": "cora",
        "kind": "node",
        "count": 1,
        "received_at": _RECEIVED,
        "applied_at": _APPLIED,
        "status": "applied",
        "what_was_done": _EXPLANATION,
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
                "time": _APPLIED,
                "details": {"injected_norm_before": 0.23, "injected_norm_after": 0},
                "request": {"model": "cora", "kind": "node", "count": 1, "received_at": _RECEIVED},
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
