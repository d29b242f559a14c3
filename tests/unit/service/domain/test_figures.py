"""The figures of an audit: each place has them all, in the order of their first publication."""

import csv
import io
import json
from collections.abc import AsyncIterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from lethe_client.results import Audit
from projector.forgetting.status import RepairStatus
from service.domain.figures import FIGURES, RECEIPT, BatchDetails, RepairFigures, RequestNorms, VersionFigures
from service.domain.kinds import RequestKind
from service.domain.records import BatchRecord, RequestAudit
from service.domain.states import RequestStatus
from service.reports.queries import AuditEntry, ExportFormat, Searched, written
from service.requests.answers import AuditAnswer, audit_answer
from tests.support.service.records import queued_request

#: The order that programs know: new ones may come between or after, and none is removed or moved.
ANSWERED: dict[str, Any] = {
    "model_version_before": 6,
    "model_version_after": 7,
    "weights_sha256_before": "c" * 64,
    "weights_sha256_after": "d" * 64,
    "rank_before": 1431,
    "rank_after": 1430,
    "directions_removed": 1,
    "deleted": 2,
    "joined": None,
    "rejoined": None,
    "directions_gained": 0,
    "nodes_joined": 0,
    "edges_joined": 0,
    "features_joined": 0,
    "labels_joined": 0,
    "injected_norm_before": 0.23,
    "injected_norm_after": 0.0,
    "lost_direction_norm_before": 0.25,
    "lost_direction_norm_after": 1e-17,
    "channel_norm_before": None,
    "channel_norm_after": None,
    "training_norm_before": None,
    "training_norm_after": None,
    "span_residual": 3e-15,
    "weight_change": 0.011,
    "distance_bound_start_relative": 3e-12,
    "distance_bound_before": 4.1,
    "distance_bound_after": 2e-9,
    "distance_bound_before_relative": 0.2,
    "distance_bound_after_relative": 1e-10,
    "repair_iterations": 3,
    "repair_weight_change": 0.01,
    "repair_version": 8,
    "repair_weights_sha256": "e" * 64,
    "repair_tolerance": 1e-8,
    "factor_age_s": 60.0,
    "coefficient_residual": 2e-14,
    "factor_method": "downdate",
    "durations_ms": {"project": 1.9, "repair": 410.0},
    "device": "cpu",
}
HEADING = (
    "id,model,status,kind,count,reference,received_at,applied_at,completed_at,failed_at,cancelled_at,due_at,"
    "ended_at,late,handled_at,handled_by,guarantee,repair,explanation,failure,already_deleted_by,batch_id,model_version_before,model_version_after,weights_sha256_before,"
    "weights_sha256_after,rank_before,rank_after,directions_removed,live_nodes,directions_gained,nodes_joined,"
    "edges_joined,features_joined,labels_joined,lost_direction_norm_before,"
    "lost_direction_norm_after,span_residual,weight_change,distance_bound_start_relative,distance_bound_before,"
    "distance_bound_after,distance_bound_before_relative,distance_bound_after_relative,repair_iterations,"
    "repair_weight_change,repair_version,repair_weights_sha256,repair_tolerance,factor_age_s,coefficient_residual,"
    "factor_method,device,deleted,joined,rejoined,injected_norm_before,injected_norm_after,channel_norm_before,"
    "channel_norm_after,training_norm_before,training_norm_after"
)
[COLUMNS] = csv.reader([HEADING])
#: Fields of the request alone, or of the batch beside its figures.
REQUEST = queued_request(
    datetime(2026, 3, 2, 9, 15, 4, 120000, tzinfo=UTC),
    id=UUID(int=3),
    kind=RequestKind.FEATURES,
    status=RequestStatus.APPLIED,
    count=2,
    reference="=1",
    api_key_id=UUID(int=4),
)
OF_REQUEST = (
    *("deleted", "injected_norm_before", "injected_norm_after", "channel_norm_before", "channel_norm_after"),
    *("training_norm_before", "training_norm_after", "joined", "rejoined"),
)
AUDIT = RequestAudit(
    BatchRecord(
        id=UUID(int=1),
        model="tiny",
        requests=5,
        nodes=9,
        features=1,
        edges=2,
        repair=RepairStatus.CONVERGED,
        live_nodes=58,
        **{name: value for name, value in ANSWERED.items() if name not in OF_REQUEST},
    ),
    RequestNorms(**{name: ANSWERED[name] for name in OF_REQUEST}),
)


def test_every_figure_that_a_record_holds_is_described_and_every_other_is_of_the_audit() -> None:
    measured = {
        each.name for kind in (VersionFigures, RepairFigures, BatchDetails, RequestNorms) for each in fields(kind)
    }
    assert measured <= FIGURES.keys()
    assert set(Searched) <= measured
    assert AUDIT.figures.keys() == FIGURES.keys()
    assert {name: AUDIT.figures[name] for name in ANSWERED} == ANSWERED


def test_every_figure_has_a_label_of_its_own_and_a_sentence() -> None:
    assert len({figure.label for figure in FIGURES.values()}) == len(FIGURES)
    assert all(figure.meaning.endswith(".") for figure in FIGURES.values())
    # Issued receipts are verified against these.
    assert {*ANSWERED, "live_nodes"} - RECEIPT.keys() == {
        *("model_version_before", "model_version_after", "weights_sha256_before", "weights_sha256_after"),
        *("repair_version", "repair_weights_sha256", "distance_bound_before", "distance_bound_after"),
        *("factor_method", "durations_ms", "device", "live_nodes", "directions_gained"),
        *("nodes_joined", "edges_joined", "features_joined", "labels_joined"),
    }


def test_the_client_has_every_figure_of_an_answer() -> None:
    known = {each.name: each for each in msgspec.structs.fields(Audit)}
    assert list(known) == list(AuditAnswer.model_fields)
    for name, answered in AuditAnswer.model_fields.items():
        if name not in ("batch", "durations_ms"):
            # A field that an earlier server does not answer is None, although a newer one always has it.
            annotation: Any = answered.annotation
            assert known[name].type in (annotation, annotation | None), name


def test_an_answer_has_every_figure_in_its_place() -> None:
    answered = json.loads(audit_answer(AUDIT, reads_audit=True).model_dump_json())
    assert answered["batch"] == {
        "id": str(UUID(int=1)),
        "requests": 5,
        "nodes": 9,
        "features": 1,
        "edges": 2,
        "labels": 0,
    }
    known = {name: value for name, value in answered.items() if name in ANSWERED}
    assert list(known.items()) == list(ANSWERED.items())


async def file_of(form: ExportFormat) -> str:
    """Return the file of an audited request and another, each on its own page."""

    async def pages() -> AsyncIterator[list[AuditEntry]]:
        yield [AuditEntry(REQUEST, AUDIT)]
        yield [AuditEntry(REQUEST, None)]

    return b"".join([part async for part in written(pages(), form)]).decode()


async def test_an_export_has_every_figure_in_its_column() -> None:
    audited, bare = csv.DictReader(io.StringIO(await file_of(ExportFormat.CSV)))
    assert [name for name in audited if name in COLUMNS] == COLUMNS
    assert audited["live_nodes"] == "58"
    assert {name: audited[name] for name in ANSWERED if name in COLUMNS} == {
        name: "" if value is None else str(value) for name, value in ANSWERED.items() if name in COLUMNS
    }
    assert not any(bare[name] for name in COLUMNS[COLUMNS.index("batch_id") :])
    first, _ = (json.loads(line) for line in (await file_of(ExportFormat.NDJSON)).splitlines())
    assert list(first) == list(audited)
    assert {name: first[name] for name in ANSWERED if name in COLUMNS} == {
        name: value for name, value in ANSWERED.items() if name in COLUMNS
    }
