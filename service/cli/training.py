"""Train a model from a dataset or tables, with its progress and a summary."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from model_store.work import Work
from projector.network.spec import ModelSpec
from service.cli.console import interrupted, note, print_result, show_progress
from service.cli.training_display import TrainingSteps, summary
from service.errors import ConfigurationError
from service.private_files import ignore_in_git

if TYPE_CHECKING:
    from model_store.datasets.tables import TableFiles
    from model_store.manifest import Manifest
    from projector.graph.tables import TableReport

Split = Literal["full", "public"]
Device = Literal["auto", "cpu", "cuda"]

#: Canaries per cohort.
COHORT_NODES = 4


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Selection from a dataset and the device for training."""

    #: Name of the model; None for the dataset's name.
    name: str | None = None
    split: Split = "full"
    dedupe: bool = False
    undirected: bool = False
    device: Device = "auto"
    #: Ids of nodes that get a binary feature of their own, for the feature injection test.
    injected: Sequence[str] | None = None
    #: Whether they also get a class of their own.
    extra_class: bool = False
    #: Number of canary cohorts added to the dataset.
    cohorts: int = 0
    cohort_nodes: int = COHORT_NODES
    #: Number of the split, in a dataset that has several.
    split_index: int | None = None
    #: Ids of nodes that an MLP is trained on.
    public: Sequence[str] = ()
    #: The model that computed the features, and the SHA-256 of its file, in hex; None if unknown.
    encoder: str | None = None
    encoder_sha256: str | None = None


def train_and_report(
    dataset: "str | TableFiles",
    out: Path,
    spec: ModelSpec,
    options: TrainingOptions,
    *,
    data_dir: Path | None = None,
    as_json: bool = False,
) -> None:
    """Train with progress output, and print the summary; see `train_model`."""
    from model_store.datasets.load import default_data_dirs

    folders = default_data_dirs(os.environ)
    with interrupted(lambda: _left(out)), show_progress("Training") as work:
        data_dirs = folders if data_dir is None else [data_dir, *folders]
        reports: list[TableReport] = []
        manifest = train_model(dataset, out, spec, options, data_dirs=data_dirs, work=work, reports=reports)
    result: dict[str, object] = {"folder": str(out), "model": manifest}
    if reports:
        result["read"] = reports[0]
    print_result(result, as_json, *(report.read for report in reports), summary(manifest, out))
    for warning in manifest.warnings:
        note(f"warning: {warning}")


def _left(out: Path) -> str:
    if out.exists() and any(out.iterdir()):
        return f"The model is complete, in {out}."
    return f"{out} contains no model: it appears only when it is complete. Run the same command again."


def train_model(
    dataset: "str | TableFiles",
    out: Path,
    spec: ModelSpec,
    options: TrainingOptions = TrainingOptions(),
    *,
    data_dirs: Sequence[Path],
    work: Work | None = None,
    reports: "list[TableReport] | None" = None,
) -> "Manifest":
    """Train on a dataset and write the model to the new folder `out`, which appears only when complete.

    `work` reports the long steps. It appends a report of tables that it read to `reports`.

    Raises:
        ConfigurationError: `out` exists and is not empty.
        ProjectorError: the dataset, the device or the training fails.
    """
    from model_store.build import build_model
    from model_store.datasets.load import load_dataset
    from model_store.datasets.tables import load_tables
    from model_store.manifest import Encoder, InjectedChannel
    from projector.forgetting.canaries import new_tag
    from projector.forgetting.injection import add_canaries, inject_channel

    # Check before training too, which may take long.
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} exists and is not empty.", "Give a new folder, or remove this one first.")
    work = work or Work()
    work.begin("Reading the dataset")
    split, left_out = options.split, list[str]()
    if isinstance(dataset, str):
        graph = load_dataset(
            dataset, split=split, data_dirs=data_dirs, seed=spec.seed, dedupe=options.dedupe,
            undirected=options.undirected, split_index=options.split_index, report=left_out.append,
        )  # fmt: skip
    else:
        graph, report = load_tables(dataset, seed=spec.seed, dedupe=options.dedupe, undirected=options.undirected)
        split = "full" if report.split is None else "public"
        left_out += report.dropped
        if reports is not None:
            reports.append(report)
    name = dataset if isinstance(dataset, str) else dataset.name
    if not spec.uses_edges and graph.edges:
        left_out.append(
            f"With 0 hops the dataset's {graph.edges} edges are not used, and the model does not store them."
        )
    if spec.uses_edges and not graph.edges:
        raise ConfigurationError(
            f"{name} has no edges.", "Use --hops 0 for a linear model on the features alone, or give edges."
        )
    canaries = None
    if options.cohorts:
        nodes = options.cohort_nodes
        graph, canaries = add_canaries(graph, options.cohorts, nodes=nodes, seed=spec.seed, tag=new_tag())
    channels = []
    if options.injected is not None:
        graph = inject_channel(graph, options.injected, extra_class=options.extra_class)
        channels.append(InjectedChannel(column=graph.num_features - 1, nodes=len(set(options.injected))))
    work.begin("Propagating and factorising the features")
    built = build_model(
        graph,
        spec,
        name=_name_of(dataset) if options.name is None else options.name,
        dataset=name,
        split=split,
        warnings=left_out,
        injected_channels=channels,
        canaries=canaries,
        public=options.public,
        encoder=None if options.encoder is None else Encoder(options.encoder, options.encoder_sha256),
        device=_resolved(options.device),
        progress=TrainingSteps(work, spec),
    )
    work.begin("Writing the model")
    manifest = built.write(out).manifest
    # A model holds personal ids and features.
    ignore_in_git(out)
    return manifest


def _resolved(device: Device) -> str:
    import torch

    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def _name_of(dataset: "str | TableFiles") -> str:
    """Return `cora` for `cora`, `data/cora.npz`, `data/ind.cora` and `cora.csv`, and `synthetic` for `synthetic:…`."""
    if not isinstance(dataset, str):
        return dataset.nodes.name.partition(".")[0]
    path = Path(dataset.partition(":")[0])
    return path.name.removeprefix("ind.") if path.name.startswith("ind.") else path.stem
