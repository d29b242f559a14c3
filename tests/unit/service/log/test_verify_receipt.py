"""A receipt verifies as issued, and no change of it does."""

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import ConfigurationError
from service.log.canonical import canonical
from service.log.checkpoints import Checkpoint, Signer, sign
from service.log.commitments import commitment
from service.log.merkle import leaf_hash
from service.log.receipt import Entry, linked, receipt, verify_receipt
from tests.support.evidence.rfc6962 import mth, path

SIGNER = Signer("lethe/0123", bytes(32))
SALTS: dict[str, Any] = {
    "nodes": {"12": "5f1d7a84db00d2fce00b31a7fc73224f0a1b2c3d4e5f6071"},
    "reference": "c0535e4be2b79ffd93291305436bf8891828384858687888",
}


def leaf(index: int, kind: str, **details: Any) -> dict[str, Any]:
    return {
        "format": "lethe-leaf/1",
        "index": index,
        "event": index + 1,
        "request_id": "0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11",
        "type": kind,
        "time": f"2026-03-02T09:15:0{index}.000000Z",
        "details": details,
        "request": {
            "model": "cora",
            "kind": "node",
            "count": 1,
            "received_at": "2026-03-02T09:15:00.000000Z",
            "guarantee": "span",
            "repair": "none",
            "explanation": "One direction was removed.",
            "failure": None,
            "already_deleted_by": None,
        },
        "subjects": [commitment(SALTS["nodes"]["12"], "12").hex()] if kind == "applied" else None,
        "reference": commitment(SALTS["reference"], "DSR-17").hex() if kind == "applied" else None,
    }


def imported(index: int, model: str = "cora") -> dict[str, Any]:
    """Return the leaf of an import, which has no request."""
    details = {"model": model, "model_version_before": 4, "model_version_after": 5, "excluded_nodes": 2}
    members = {"request_id": None, "request": None, "subjects": None, "reference": None, "type": "imported"}
    return leaf(index, "imported") | members | {"details": details}


LEAVES = [leaf(2, "applied", rank_after=9, span_residual=None), leaf(5, "completed", span_residual=3e-15)]


def receipt_over(*since: dict[str, Any], leaves: Sequence[dict[str, Any]] = LEAVES) -> dict[str, Any]:
    texts = [f"other {number}".encode() for number in range(7)]
    for one in (*leaves, *since):
        texts[one["index"]] = canonical(one)
    checkpoint = sign(Checkpoint("lethe/0123", 7, mth(texts)), [SIGNER])

    def proven(leaves: Sequence[dict[str, Any]]) -> list[Entry]:
        return [Entry(one, path(one["index"], texts)) for one in leaves]

    made = receipt(proven(leaves), checkpoint, [SIGNER.public], proven(since))
    parsed: dict[str, Any] = json.loads(json.dumps(made))
    return parsed


@pytest.mark.parametrize(("bound", "is_good"), [(9e-7, True), (2e-6, False)])
def test_weights_are_judged_by_the_tolerance_that_their_leaf_states(bound: float, is_good: bool) -> None:
    figures = {"repair": "converged", "distance_bound_after_relative": bound, "repair_tolerance": 1e-6}
    document = receipt_over(leaves=[leaf(2, "applied", **figures), LEAVES[1]])
    report = verify_receipt(document, [SIGNER.public])
    message = "leaf 2: it claims retraining, but its bound 2e-06 is above the tolerance 1e-06"
    assert [str(finding) for finding in report.findings] == ([] if is_good else [message])
    assert document["summary"]["figures"]["repair_tolerance"] == 1e-6


@pytest.fixture
def document() -> dict[str, Any]:
    return receipt_over()


def test_a_receipt_holds_as_it_was_given(document: dict[str, Any]) -> None:
    report = verify_receipt(document, [SIGNER.public])
    assert report.is_good
    assert report.leaves == 2
    assert document["summary"]["figures"] == {"rank_after": 9, "span_residual": 3e-15}
    assert document["summary"]["status"] == "completed"


def test_it_shows_what_befell_the_model_since(document: dict[str, Any]) -> None:
    assert document["summary"]["since"] == []
    since = receipt_over(imported(4), imported(6))
    report = verify_receipt(since, [SIGNER.public])
    assert report.is_good, report.findings
    assert [index for index, _ in report.unrequested] == [4, 6]
    assert "a newly trained model replaced cora: version 4 to 5" in since["summary"]["since"][0]["what"]
    for others in ((imported(6, "pubmed"),), (imported(1),), (imported(6), imported(4)), (LEAVES[1],)):
        assert not verify_receipt(receipt_over(*others), [SIGNER.public]).is_good


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every place of a document that is not an object or list."""
    if isinstance(value, dict):
        return [place for name in value for place in places(value[name], (*at, name))]
    if isinstance(value, list):
        return [place for number, item in enumerate(value) for place in places(item, (*at, number))]
    return [at]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_no_change_of_it_does(data: st.DataObject) -> None:
    document = receipt_over(imported(6))
    # The signing keys are the server's claim, and never relied on.
    place = data.draw(st.sampled_from([place for place in places(document) if place[0] != "public_keys"]))
    within = document
    for step in place[:-1]:
        within = within[step]
    value = within[place[-1]]
    within[place[-1]] = data.draw(
        st.one_of(st.text(max_size=9), st.integers(-3, 9), st.none(), st.booleans(), st.just([])).filter(
            lambda other: canonical(other) != canonical(value)
        )
    )
    assert not verify_receipt(document, [SIGNER.public]).is_good


@pytest.mark.parametrize("change", ["entry removed", "entries swapped", "entry twice", "member removed", "none"])
def test_neither_does_one_of_another_shape(document: dict[str, Any], change: str) -> None:
    changed: Any = copy.deepcopy(document)
    if change == "entry removed":
        del changed["entries"][1]
    elif change == "entries swapped":
        changed["entries"].reverse()
    elif change == "entry twice":
        changed["entries"].append(changed["entries"][1])
    elif change == "member removed":
        del changed["checkpoint"]
    else:
        changed["entries"] = []
    assert not verify_receipt(changed, [SIGNER.public]).is_good
    nothing: Any
    for nothing in ({}, [], None, 3):
        assert not verify_receipt(nothing, [SIGNER.public]).is_good


def test_a_receipt_signed_by_another_key_does_not_hold(document: dict[str, Any]) -> None:
    other = Signer("lethe/0123", b"1" * 32)
    assert [str(finding) for finding in verify_receipt(document, [other.public]).findings] == [
        "The checkpoint of size 7 is not signed by a trusted key."
    ]


def test_a_receipt_is_compared_with_a_checkpoint_of_its_size_alone(document: dict[str, Any]) -> None:
    good = verify_receipt(document, [SIGNER.public]).checkpoint
    assert good is not None
    assert verify_receipt(document, [SIGNER.public], good).is_good
    another = Checkpoint("lethe/0123", 7, leaf_hash(b""))
    assert not verify_receipt(document, [SIGNER.public], another).is_good
    with pytest.raises(ConfigurationError, match="of size 7"):
        verify_receipt(document, [SIGNER.public], Checkpoint("lethe/0123", 6, good.root))


def test_with_the_salts_it_is_linked_to_the_person(document: dict[str, Any]) -> None:
    assert linked(document, SALTS, None) == ({"12": True}, None)
    assert linked(document, SALTS, "DSR-17") == ({"12": True}, True)
    assert linked(document, {"nodes": {"12": "00" * 24, "13": SALTS["nodes"]["12"]}}, None) == (
        {"12": False, "13": False},
        None,
    )
    salts: Any
    for salts in (None, {}, {"nodes": {"12": "no hex"}}, {"nodes": ["12"]}):
        with pytest.raises(ValueError, match=r"salt|hex"):
            linked(document, salts, None)


def test_a_leaf_opens_for_one_person_alone(document: dict[str, Any]) -> None:
    salt = SALTS["nodes"]["12"]
    # As bytes they equal the salt and 12: accepted as salts, they would turn the receipt into one about 2 or "".
    for longer, rest in ((salt + b"1".hex(), "2"), (salt + b"12".hex(), "")):
        assert commitment(longer, rest) == commitment(salt, "12")
        with pytest.raises(ValueError, match="24 bytes"):
            linked(document, {"nodes": {rest: longer}}, None)
    shorter, longer = salt[:-2], bytes.fromhex(salt[-2:]).decode("latin-1") + "12"
    # Blanks between the digits are invalid.
    for blanks in ("", "  "):
        with pytest.raises(ValueError, match="24 bytes"):
            linked(document, {"nodes": {longer: shorter + blanks}}, None)
