"""A lost or damaged model folder without a backup: the remedies in the messages work."""

import shutil

import pytest

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.store import Store
from projector.network.spec import ModelSpec
from tests.support.models.trained_models import SMALL
from tests.support.service.sites import Site, everything

pytestmark = pytest.mark.ci


def test_a_newly_trained_model_takes_the_place_of_one_that_is_lost_without_what_was_deleted(site: Site) -> None:
    site.delete(*everything(site.world))
    manifest = site.model / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"small", b"large"))
    ran = site.command("model", "import", site.world.folder)
    assert ran.status == 1
    assert f"{manifest} does not match" in ran.stderr
    assert "put the new one in its place and run `./lethe recover`" in " ".join(ran.stderr.split())
    shutil.rmtree(site.model)
    ran = site.command("model", "import", site.world.folder)
    assert ran.status == 2
    said = " ".join(ran.stderr.split())
    assert f"{site.model} contains none: it is in another folder, or lost." in said
    assert f"If the model is lost, copy {site.world.folder} to {site.model} and run `./lethe recover`" in said
    assert not site.model.exists()
    ran = site.command("serve")
    assert ran.status == 2
    said = " ".join(ran.stderr.split())
    assert f"copy a folder written by `./lethe train --out DIR` to {site.model} and run `./lethe recover`" in said
    assert "Training on" not in said
    assert not site.model.exists()

    # Another name would be another model, without known deletions.
    build_model(load_dataset(SMALL, data_dirs=[]), ModelSpec(), name="other", dataset="other", split="full").write(
        site.model
    )
    name = Store.open(site.world.folder).manifest.name
    site.refused(f"has served the model {name!r}, but the folder contains one named 'other'")
    pepper = site.settings.home / "keys" / "api-pepper.key"
    away = pepper.rename(pepper.with_suffix(".away"))
    refused = site.recover("--accept-lost", "api-pepper")
    assert refused.status == 1
    assert "revoked" not in refused.stderr, "a database that does not belong stays as it was"
    away.rename(pepper)
    assert f"train it with `--name {name}`" in " ".join(refused.stderr.split())
    shutil.rmtree(site.model)

    shutil.copytree(site.world.folder, site.model)
    site.refused("restored from an older backup")
    recovered = site.recover()
    assert recovered.status == 0, recovered.stderr
    [recovery] = site.recoveries()
    version = recovery.version
    assert (version.deleted_nodes, version.deleted_features, version.deleted_edges) == (2, 1, 1)
    assert recovery.unknown_nodes == 0
    site.assert_forgotten()
