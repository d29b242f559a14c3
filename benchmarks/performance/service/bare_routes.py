"""The floor of an answer: bare FastAPI routes with Lethe's own answer models, behind uvicorn as Lethe runs it.

No key, no middleware, no metrics, no log line, no database: only the framework remains. As a separate process it prints
its port.

    python -m benchmarks.performance.service.bare_routes CLASSES
"""

import secrets
import sys
from datetime import UTC, datetime
from typing import Annotated
from uuid import uuid4

import uvicorn
from fastapi import Body, FastAPI

from service.domain.kinds import RequestKind
from service.domain.states import RequestStatus
from service.processes.api_process import server_config
from service.processes.listening import listen
from service.requests.answers import AcceptedDeletion, Links, Salts
from service.requests.schemas import DeletionBody, EdgesBody
from service.web.api.prediction_routes import PredictionAnswer


def bare_app(classes: int) -> FastAPI:
    """Return the two routes. A prediction has `classes` probabilities with as many digits as any."""
    app = FastAPI()
    probabilities = {str(index): (index + 1 / 3) / classes**2 for index in range(classes)}

    @app.get("/predict/{node:path}")
    async def predict(node: str) -> PredictionAnswer:
        return PredictionAnswer(node=node, label="0", probabilities=probabilities, model_version=0)

    @app.post("/deletions", status_code=202)
    async def delete(body: Annotated[DeletionBody, Body()]) -> AcceptedDeletion:
        number, now = uuid4(), datetime.now(UTC)
        nodes = [] if isinstance(body, EdgesBody) else body.nodes
        return AcceptedDeletion(
            id=number,
            status=RequestStatus.QUEUED,
            kind=RequestKind(body.kind),
            count=len(nodes),
            received_at=now,
            due_at=now,
            links=Links(self=f"/deletions/{number}"),
            salts=Salts(nodes={node: secrets.token_hex(24) for node in nodes}, reference=None),
            already_deleted={},
        )

    return app


def main() -> None:
    """Serve until stopped."""
    bound = listen("127.0.0.1", 0)
    print(bound.getsockname()[1], flush=True)
    uvicorn.Server(server_config(bare_app(int(sys.argv[1])))).run(sockets=[bound])


if __name__ == "__main__":
    main()
