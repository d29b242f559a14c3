"""The typed HTTP client of Lethe: `LetheClient`, its results and its errors."""

from lethe_client.client import LetheClient
from lethe_client.errors import DeletionStopped, LetheClientError, ProblemError, ServerUnreachable, WaitTimeout
from lethe_client.results import (
    Accepted,
    Audit,
    BatchSummary,
    ConsistencyProof,
    Deletion,
    DeletionPage,
    InclusionProof,
    ModelInfo,
    NodePrediction,
    Prediction,
    Predictions,
    RepairProgress,
    Salts,
)

__all__ = [
    "Accepted",
    "Audit",
    "BatchSummary",
    "ConsistencyProof",
    "Deletion",
    "DeletionPage",
    "DeletionStopped",
    "InclusionProof",
    "LetheClient",
    "LetheClientError",
    "ModelInfo",
    "NodePrediction",
    "Prediction",
    "Predictions",
    "ProblemError",
    "RepairProgress",
    "Salts",
    "ServerUnreachable",
    "WaitTimeout",
]
