"""A service that publishes with noise: its visible effects, its stored data, and when it publishes nothing."""

import errno
import hashlib
import html
import os
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from projector.certified.mechanism import shown
from service.domain.scopes import Scope
from service.domain.states import noise_in_words
from service.log.export import verify_export
from service.settings import Settings
from tests.support.clients.signing_in import sign_in
from tests.support.full_disk import refusing_midway
from tests.support.service.db_harness import until
from tests.support.service.published import (
    Kept,
    assert_a_restart_draws_nothing_anew,
    assert_below_the_audit_nothing_is_computed_from_the_weights_as_they_are,
    assert_weights_that_are_not_near_enough_stay_queued,
    exported,
    predicted,
    with_key,
)
from tests.support.service.repairs import model_of
from tests.support.service.running import Lethe, running

#: What writes a version of the model, and what writes it for those who predict.
_WRITES = ("model_store.versions.durable_changes", "service.predictions.writer._write_file")


@pytest.mark.ci
async def test_all_that_others_see_of_a_version_is_its_stored_draw_and_what_fails_uses_up_nothing(
    lethe: Lethe, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = await lethe.delete("12")
    # One after the other, so that each has its own version.
    states = [await lethe.completed(accepted), await lethe.completed(await lethe.delete("57"))]
    assert (await model_of(lethe))["noise"]["used"] == pytest.approx(2)
    await assert_predictions_come_from_the_draw_and_never_from_the_weights(lethe)
    await assert_the_paragraph_is_the_same_wherever_noise_is_described(lethe, accepted, states[0])
    await assert_commitments_are_one_for_each_version_and_open_with_its_salt(lethe, states)
    await assert_the_export_opens_every_commitment_and_shows_one_that_does_not_open(lethe)
    await assert_weights_that_are_not_near_enough_stay_queued(lethe, monkeypatch, node="30")
    for node, written in zip(("40", "41"), _WRITES, strict=True):
        await assert_versions_that_do_not_fit_on_the_disk_use_up_nothing_of_the_promise(
            lethe, monkeypatch, node, written
        )


async def assert_predictions_come_from_the_draw_and_never_from_the_weights(lethe: Lethe) -> None:
    kept, seen = Kept(lethe.settings.model_dir), await predicted(lethe)
    committed, publication = kept.committed, kept.version.publication
    assert publication is not None
    assert committed.certificate is not None
    noisy = shown(publication, committed.state, committed.certificate)
    wanted = committed.live_graph.probabilities(noisy)
    exact = committed.live_graph.probabilities(committed.state)
    live = committed.state.live
    assert np.abs(seen[live] - wanted[live]).max() <= 1e-12
    assert (np.abs(seen[live] - exact[live]).max(axis=1) > 1e-12).all()
    # A node outside the graph is predicted like one of it with the same features, if neither has neighbours.
    alone = np.flatnonzero(live & (committed.live_graph.propagator.neighbours == 0))[:1]
    row = committed.features.rows.dense_rows(alone)[0].tolist()
    answer = (await lethe.client.post("/predict-new", json={"nodes": [{"features": row}]})).json()
    outside = [*answer["predictions"][0]["probabilities"].values()]
    assert np.abs(outside - wanted[alone[0]]).max() <= 1e-12


async def assert_the_paragraph_is_the_same_wherever_noise_is_described(
    lethe: Lethe, accepted: dict[str, Any], state: dict[str, Any]
) -> None:
    audit = state["audit"]
    names = ("publication_epsilon", "publication_delta", "publications_planned", "publication_mu")
    paragraph = noise_in_words(*(audit[name] for name in names))
    assert "in at most 56.3 % of cases" in paragraph
    assert (await model_of(lethe))["noise"]["meaning"] == paragraph
    assert (await lethe.receipt(accepted))["summary"]["noise_in_words"] == paragraph
    assert (await lethe.client.get("/audit/summary")).json()["noise"] == paragraph
    await sign_in(lethe.client, "the-first-key")
    of_request = f"/dashboard/requests/{accepted['id']}"
    report = f"/dashboard/report?of={datetime.now(UTC):%Y-%m}"
    for page in (of_request, f"{of_request}/receipt", "/dashboard/model", report):
        assert paragraph in html.unescape((await lethe.client.get(page)).text), page


async def assert_commitments_are_one_for_each_version_and_open_with_its_salt(
    lethe: Lethe, states: list[dict[str, Any]]
) -> None:
    assert states[0]["audit"]["weights_sha256_after"] == states[1]["audit"]["weights_sha256_before"]
    kept, audit = Kept(lethe.settings.model_dir), states[1]["audit"]
    salt = bytes.fromhex(audit["commitment_salt"])
    assert hashlib.sha256(salt + kept.weights).hexdigest() == audit["weights_sha256_after"]
    assert (await model_of(lethe))["weights_sha256"] == audit["weights_sha256_after"]


async def assert_the_export_opens_every_commitment_and_shows_one_that_does_not_open(lethe: Lethe) -> None:
    lines, keys = await exported(lethe)
    report = verify_export(lines, keys)
    assert report.is_good, report.findings
    opened = [line for line in lines if "opening" in line]
    # Applied, repaired and completed, of each of two versions.
    assert len(opened) == 6
    opened[1]["opening"]["figures"]["weight_change"] = 0.5
    changed = verify_export(lines, keys)
    assert [fault.what for fault in changed.findings] == ["the figures that it commits to were removed or changed"]


async def test_a_restart_draws_nothing_anew(settings: Settings) -> None:
    await assert_a_restart_draws_nothing_anew(settings)


@pytest.mark.ci
async def test_below_the_audit_nothing_is_computed_from_the_weights_as_they_are(lethe: Lethe) -> None:
    await assert_below_the_audit_nothing_is_computed_from_the_weights_as_they_are(lethe)


async def assert_versions_that_do_not_fit_on_the_disk_use_up_nothing_of_the_promise(
    lethe: Lethe, monkeypatch: pytest.MonkeyPatch, node: str, written: str
) -> None:
    refused, before = 0, await model_of(lethe)

    def full(*_: object) -> None:
        nonlocal refused
        refused += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def is_refused_twice() -> bool:
        return refused > 1

    with monkeypatch.context() as patched:
        patched.setattr(written, refusing_midway(full) if written == _WRITES[0] else full)
        accepted = await lethe.delete(node)
        await until(is_refused_twice)
    await lethe.completed(accepted)
    model = await model_of(lethe)
    assert model["version"] == before["version"] + 1
    assert model["noise"]["used"] == pytest.approx(before["noise"]["used"] + 1)


@pytest.mark.ci
async def test_a_promise_that_is_used_up_allows_no_further_version(exact_settings: Settings) -> None:
    few = exact_settings.model_copy(update={"certify": "1,1e-4", "certify_publications": 2})
    async with running(few) as lethe:
        await until(lethe.is_ready)
        for node in ("3", "4"):
            await lethe.completed(await lethe.delete(node))
        assert (await model_of(lethe))["noise"]["used"] == pytest.approx(2)
        accepted = await lethe.delete("5")

        async def is_named() -> bool:
            checks = (await lethe.client.get("/readyz")).json()["checks"]
            return any("allows no further version" in check["detail"] for check in checks)

        await until(is_named)
        assert (await lethe.state(accepted))["status"] == "queued"
    async with running(few.model_copy(update={"certify": "2,1e-4", "certify_publications": 10})) as lethe:
        await lethe.completed(accepted)
        model = await model_of(lethe)
        assert (model["version"], model["noise"]["epsilon"]) == (5, 2.0)
        lines, keys = await exported(lethe)
        assert verify_export(lines, keys).is_good


@pytest.mark.slow
async def test_turned_on_later_it_covers_what_comes_then_and_says_so(exact_settings: Settings) -> None:
    async with running(exact_settings) as lethe:
        await until(lethe.is_ready)
        first = await lethe.completed(await lethe.delete("3"))
        assert (await model_of(lethe))["noise"] is None
    noisy = exact_settings.model_copy(update={"certify": "1,1e-4"})
    async with running(noisy) as lethe:

        async def has_noise() -> bool:
            # Until then the earlier version is still served.
            return await lethe.is_ready() and (await model_of(lethe))["noise"] is not None

        await until(has_noise)
        model = await model_of(lethe)
        assert (model["version"], model["noise"]["used"], model["distance_bound"]) == (2, 0.0, None)
        reader = await with_key(lethe, Scope.DELETIONS_READ, Scope.DELETIONS_WRITE)
        accepted = await reader.delete("4")
        await lethe.completed(accepted)
        receipt = await reader.receipt(accepted)
        assert "epsilon 1, delta 0.0001" in receipt["summary"]["noise_in_words"]
        earlier = await lethe.receipt(first)
        assert [each["what"] for each in earlier["summary"]["since"]] == [
            "from version 2 of small on, what is published has noise: epsilon 1 and delta 0.0001 over 10000 versions "
            "after a deletion"
        ]
        lines, keys = await exported(lethe)
        assert verify_export(lines, keys).is_good
    async with running(exact_settings) as lethe:
        await until(lethe.is_ready)
        assert (await model_of(lethe))["noise"] is not None
        await lethe.completed(await lethe.delete("5"))
        assert (await model_of(lethe))["noise"] is None
