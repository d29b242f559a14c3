"""`lethe train`: build a model folder from a dataset."""

from pathlib import Path
from typing import Annotated, get_args

import typer

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
from service.cli import table_options
from service.cli.console import Json, read_lines
from service.cli.training import COHORT_NODES, Device, Split, TrainingOptions, train_and_report

_DEFAULTS = ModelSpec()


def command(
    out: Annotated[Path, typer.Option(help="New folder for the model.")],
    dataset: Annotated[
        str | None, typer.Option(help="Name, .npz or .pt file, or synthetic:n=…,d=…,classes=…,seed=….")
    ] = None,
    nodes: table_options.Nodes = None,
    edges: table_options.Edges = None,
    id: table_options.Id = "id",
    source: table_options.Source = "source",
    target: table_options.Target = "target",
    weight: table_options.Weight = None,
    label: table_options.Label = "label",
    features: table_options.Features = None,
    missing: table_options.Missing = "refuse",
    drop_invalid: table_options.DropInvalid = False,
    name: Annotated[str | None, typer.Option(show_default="the dataset's", help="Name of the model.")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="full|public|COLUMN",
            show_default="full; with --nodes: the column split, if there is one",
            help="full: train on all labels outside validation and test. With --nodes: the column that names each set.",
        ),
    ] = None,
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

    [bold]./lethe train --nodes users.parquet --edges follows.parquet --id user_id --out models/users[/bold]

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
    tables = table_options.tables_of(
        nodes, edges, id=id, source=source, target=target, weight=weight, label=label, split=split,
        features=features, missing=missing, drop_invalid=drop_invalid,
    )  # fmt: skip
    if (tables is None) == (dataset is None):
        raise typer.BadParameter("Give a dataset, or --nodes FILE and --edges FILE.", param_hint="--dataset")
    if tables is None and split not in (None, *get_args(Split)):
        raise typer.BadParameter("must be full or public; a column needs --nodes.", param_hint="--split")
    if tables is not None and tables.edges is None and hops:
        raise typer.BadParameter("--nodes needs --edges FILE, unless --hops is 0.", param_hint="--edges")
    injected = None if inject_channel is None else read_lines(inject_channel)
    options = TrainingOptions(
        name=name, split="public" if split == "public" else "full", split_index=split_index,
        dedupe=dedupe, undirected=undirected, device=device,
        injected=injected, extra_class=inject_class, cohorts=canaries, cohort_nodes=canary_nodes or COHORT_NODES,
        public=() if public is None else read_lines(public),
        encoder=encoder, encoder_sha256=None if encoder_digest is None else _sha256(encoder_digest),
    )  # fmt: skip
    train_and_report(tables or dataset or "", out, spec, options, data_dir=data_dir, as_json=as_json)


def _sha256(digest: str) -> str:
    from model_store.manifest import SHA256

    value = digest.removeprefix("sha256:").lower()
    if SHA256.fullmatch(value) is None:
        raise typer.BadParameter(
            "must be sha256: and 64 hexadecimal digits, as `sha256sum FILE` prints them.", param_hint="--encoder-digest"
        )
    return value
