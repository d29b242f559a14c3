"""`lethe train`: build a model folder from a dataset."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from model_store.work import Work
from projector.graph.node_ids import RULE, is_allowed
from projector.network.spec import (
    MAX_HOPS,
    MAX_LABEL_HOPS,
    MAX_LAMBDA,
    MAX_SEED,
    MIN_LAMBDA,
    ClassWeight,
    Combine,
    LossKind,
    ModelSpec,
    PropagationKind,
    SolverKind,
)
from service.cli.console import Json, interrupted, note, print_result, read_lines, show_progress
from service.cli.training_display import TrainingSteps, summary
from service.errors import ConfigurationError
from service.private_files import ignore_in_git

if TYPE_CHECKING:
    from model_store.manifest import Manifest

Split = Literal["full", "public"]
Device = Literal["auto", "cpu", "cuda"]

_DEFAULTS = ModelSpec()
#: Canaries per cohort.
COHORT_NODES = 4


def command(
    dataset: Annotated[str, typer.Option(help="Name, .npz or .pt file, or synthetic:n=…,d=…,classes=…,seed=….")],
    out: Annotated[Path, typer.Option(help="New folder for the model.")],
    name: Annotated[str | None, typer.Option(show_default="the dataset's", help="Name of the model.")] = None,
    split: Annotated[Split, typer.Option(help="full: train on all labels outside validation and test.")] = "full",
    split_index: Annotated[
        int | None, typer.Option(min=0, show_default="0", help="Number of the split in a dataset that has several.")
    ] = None,
    hops: Annotated[
        int, typer.Option(min=0, max=MAX_HOPS, help="L: number of propagation steps; 0: no edges.")
    ] = _DEFAULTS.hops,
    combine: Annotated[Combine, typer.Option(help="last: P^L X; concat: X, P X, …, P^L X.")] = _DEFAULTS.combine,
    propagation: Annotated[
        PropagationKind, typer.Option(help="Normalisation of the adjacency matrix.")
    ] = _DEFAULTS.propagation,
    self_loops: Annotated[float, typer.Option(min=0.0, help="s in A + s I.")] = _DEFAULTS.self_loops,
    regularization: Annotated[
        float, typer.Option("--lambda", help="Weight of |W|²/2 in the loss.")
    ] = _DEFAULTS.regularization,
    label_hops: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_LABEL_HOPS, help="Number of times that training labels are propagated as features."
        ),
    ] = _DEFAULTS.label_hops,
    diffusion: Annotated[
        bool, typer.Option("--diffusion", help="Propagate features by learned similarity instead of degree.")
    ] = _DEFAULTS.diffusion,
    gamma: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="With --diffusion: weight of the neighbourhood in each hop.")
    ] = _DEFAULTS.gamma,
    loss: Annotated[LossKind, typer.Option(help="Loss, averaged over the training nodes.")] = _DEFAULTS.loss,
    class_weight: Annotated[
        ClassWeight, typer.Option(help="balanced: each class counts alike in the loss, however many nodes it has.")
    ] = _DEFAULTS.class_weight,
    solver: Annotated[SolverKind, typer.Option(help="Solver; newton trains to the optimum.")] = _DEFAULTS.solver,
    tolerance: Annotated[float, typer.Option(help="newton: relative gradient at which to stop.")] = _DEFAULTS.tolerance,
    learning_rate: Annotated[float, typer.Option(help="sgd: learning rate.")] = _DEFAULTS.learning_rate,
    momentum: Annotated[float, typer.Option(help="sgd: momentum.")] = _DEFAULTS.momentum,
    batch_size: Annotated[int, typer.Option(min=0, help="sgd: batch size in nodes; 0: all.")] = _DEFAULTS.batch_size,
    epochs: Annotated[int, typer.Option(min=1, help="sgd: number of epochs.")] = _DEFAULTS.epochs,
    dedupe: Annotated[bool, typer.Option("--dedupe", help="Drop repeated edges.")] = False,
    undirected: Annotated[
        bool, typer.Option("--undirected", help="Add the other direction of edges that are given in one.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Random seed.")] = _DEFAULTS.seed,
    mlp: Annotated[
        int, typer.Option(min=0, help="Width of an MLP whose outputs replace the features; 0: no MLP.")
    ] = _DEFAULTS.mlp_width,
    public: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="File of node ids (one per line) to train the MLP on; these nodes can never be deleted.",
        ),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Name of the model that computed the features; deletions do not change it.")
    ] = None,
    encoder_digest: Annotated[
        str | None, typer.Option(metavar="sha256:HEX", help="SHA-256 of the encoder's file, to be recorded.")
    ] = None,
    inject_channel: Annotated[
        Path | None, typer.Option(help="File of node ids (one per line) that share an extra feature of their own.")
    ] = None,
    inject_class: Annotated[
        bool, typer.Option("--inject-class", help="Also give these nodes a class of their own.")
    ] = False,
    canaries: Annotated[
        int,
        typer.Option(min=0, help="Number of cohorts of made-up nodes to add, for drills that delete one cohort each."),
    ] = 0,
    canary_nodes: Annotated[
        int | None, typer.Option(min=1, show_default=str(COHORT_NODES), help="Nodes per cohort.")
    ] = None,
    device: Annotated[Device, typer.Option(envvar="LETHE_DEVICE", help="auto: cuda if available.")] = "auto",
    data_dir: Annotated[
        Path | None, typer.Option(envvar="LETHE_DATA_DIR", help="Folder searched first for datasets.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model and write its folder.

    Examples:

    [bold]./lethe train --dataset cora --out models/cora[/bold]

    [bold]./lethe train --dataset cora --out models/injected --inject-channel ids.txt --inject-class[/bold]

    [bold]./lethe train --dataset cora --out models/drilled --canaries 12[/bold]

    [bold]./lethe train --dataset cora --out models/mlp --mlp 256 --public consenting.txt[/bold]
    """
    if inject_class and inject_channel is None:
        raise typer.BadParameter("needs --inject-channel FILE with the ids of the nodes.", param_hint="--inject-class")
    if canary_nodes is not None and not canaries:
        raise typer.BadParameter("needs --canaries K, the number of cohorts.", param_hint="--canary-nodes")
    if mlp and public is None:
        raise typer.BadParameter("needs --public FILE with the ids of the nodes to train it on.", param_hint="--mlp")
    if public is not None and not mlp:
        raise typer.BadParameter("needs --mlp WIDTH: only an MLP uses public nodes.", param_hint="--public")
    if not MIN_LAMBDA <= regularization <= MAX_LAMBDA:
        raise typer.BadParameter(f"must be {MIN_LAMBDA:g} to {MAX_LAMBDA:g}.", param_hint="--lambda")
    if encoder is not None and not is_allowed(encoder):
        raise typer.BadParameter(f"must be {RULE}.", param_hint="--encoder")
    if encoder_digest is not None and encoder is None:
        raise typer.BadParameter("needs --encoder NAME.", param_hint="--encoder-digest")
    if name is not None and not is_allowed(name):
        raise typer.BadParameter(f"must be {RULE}.", param_hint="--name")
    spec = ModelSpec(
        propagation=propagation,
        self_loops=self_loops,
        hops=hops,
        combine=combine,
        label_hops=label_hops,
        diffusion=diffusion,
        gamma=gamma,
        loss=loss,
        class_weight=class_weight,
        regularization=regularization,
        solver=solver,
        tolerance=tolerance,
        learning_rate=learning_rate,
        momentum=momentum,
        batch_size=batch_size,
        epochs=epochs,
        seed=seed,
        mlp_width=mlp,
    )
    injected = None if inject_channel is None else read_lines(inject_channel)
    options = TrainingOptions(
        name=name, split=split, split_index=split_index, dedupe=dedupe, undirected=undirected, device=device,
        injected=injected, extra_class=inject_class, cohorts=canaries, cohort_nodes=canary_nodes or COHORT_NODES,
        public=() if public is None else read_lines(public),
        encoder=encoder, encoder_sha256=None if encoder_digest is None else _sha256(encoder_digest),
    )  # fmt: skip
    train_and_report(dataset, out, spec, options, data_dir=data_dir, as_json=as_json)


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


def _sha256(digest: str) -> str:
    from model_store.manifest import SHA256

    value = digest.removeprefix("sha256:").lower()
    if SHA256.fullmatch(value) is None:
        raise typer.BadParameter(
            "must be sha256: and 64 hexadecimal digits, as `sha256sum FILE` prints them.", param_hint="--encoder-digest"
        )
    return value


def train_and_report(
    dataset: str,
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
        manifest = train_model(dataset, out, spec, options, data_dirs=data_dirs, work=work)
    print_result({"folder": str(out), "model": manifest}, as_json, summary(manifest, out))
    for warning in manifest.warnings:
        note(f"warning: {warning}")


def _left(out: Path) -> str:
    if out.exists() and any(out.iterdir()):
        return f"The model is complete, in {out}."
    return f"{out} contains no model: it appears only when it is complete. Run the same command again."


def train_model(
    dataset: str,
    out: Path,
    spec: ModelSpec,
    options: TrainingOptions = TrainingOptions(),
    *,
    data_dirs: Sequence[Path],
    work: Work | None = None,
) -> "Manifest":
    """Train on a dataset and write the model to the new folder `out`, which appears only when complete.

    `work` reports the long steps.

    Raises:
        ConfigurationError: `out` exists and is not empty.
        ProjectorError: the dataset, the device or the training fails.
    """
    from model_store.build import build_model
    from model_store.datasets.load import load_dataset
    from model_store.manifest import Encoder, InjectedChannel
    from projector.forgetting.canaries import new_tag
    from projector.forgetting.injection import add_canaries, inject_channel

    # Check before training too, which may take long.
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} exists and is not empty.", "Give a new folder, or remove this one first.")
    work = work or Work()
    work.begin("Reading the dataset")
    split, left_out = options.split, list[str]()
    graph = load_dataset(
        dataset, split=split, data_dirs=data_dirs, seed=spec.seed,
        dedupe=options.dedupe, undirected=options.undirected, split_index=options.split_index, report=left_out.append,
    )  # fmt: skip
    if not spec.uses_edges and graph.edges:
        left_out.append(
            f"With 0 hops the dataset's {graph.edges} edges are not used, and the model does not store them."
        )
    if spec.uses_edges and not graph.edges:
        raise ConfigurationError(
            f"{dataset} has no edges.", "Use --hops 0 for a linear model on the features alone, or give edges."
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
        dataset=dataset,
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


def _name_of(dataset: str) -> str:
    """Return `cora` for `cora`, `data/cora.npz` and `data/ind.cora`, and `synthetic` for `synthetic:…`."""
    path = Path(dataset.partition(":")[0])
    return path.name.removeprefix("ind.") if path.name.startswith("ind.") else path.stem
