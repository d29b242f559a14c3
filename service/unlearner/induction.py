"""Predict nodes outside the graph, for the answering processes, between the unlearner's own steps."""

import asyncio
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from projector.asked import newcomers
from projector.errors import GraphError
from service.domain.records import NodeContent
from service.predictions.newcomers import Late, Newcomer, NotShown, Predicted, Question, Reply, Unfit
from service.unlearner.context import Context
from service.unlearner.joining_batch import exponents_of, feature_row, without_rows
from service.unlearner.version_writer import VersionWriter


class Induction:
    """Answers questions about nodes outside the graph, from the committed version.

    It works on the executor, where nothing else changes the version meanwhile, and holds up other work by one node at
    most. Nothing of a question is kept.
    """

    def __init__(self, context: Context, writer: Callable[[], VersionWriter | None]) -> None:
        """`writer` returns the writer of the loaded model, if any."""
        self._context = context
        self._writer = writer
        #: Nodes on the executor, so that deletions wait for one of them alone, however many are asked for.
        self._one = asyncio.Lock()

    async def answer(self, question: Question) -> Reply:
        """Return the predictions, or why it made none."""
        outputs = []
        try:
            async with asyncio.timeout(question.within_s):
                for newcomer in question.newcomers:
                    async with self._one:
                        output = await self._context.run(partial(self._predict, question, newcomer))
                    if output is None:
                        return NotShown()
                    outputs.append(tuple(output.tolist()))
        except GraphError as error:
            return Unfit(len(outputs), without_rows(error.detail))
        except TimeoutError:
            return Late()
        return Predicted(tuple(outputs))

    def _predict(self, question: Question, newcomer: Newcomer) -> NDArray[np.float64] | None:
        """Return the prediction, (C,), from the version of the question; None if that is not committed here."""
        writer = self._writer()
        if writer is None or writer.shown_as != (question.fencing, question.version):
            return None
        committed, manifest = writer.resident.committed, writer.manifest
        row = feature_row(NodeContent(newcomer.features), manifest)
        neighbours = [np.array(newcomer.neighbours, dtype=np.int64)]
        [joining] = newcomers(committed.held(None), exponents_of(manifest), row, neighbours)
        return committed.live_graph.probabilities_of_new(committed.published_state, joining)
