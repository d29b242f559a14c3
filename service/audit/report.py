"""What a verification found."""

from dataclasses import dataclass, field

from service.audit.checkpoint import Checkpoint


@dataclass(frozen=True)
class Fault:
    """One thing that is not as it was logged and signed."""

    #: The leaf concerned, counted from 0; None when it is no single one.
    index: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.index is None else f"leaf {self.index}: {self.what}"


@dataclass
class Report:
    """The outcome of one verification; nothing was found wrong when `findings` is empty."""

    findings: list[Fault] = field(default_factory=list)
    #: Leaves that were checked.
    leaves: int = 0
    #: Checkpoints whose signature is a trusted key's and good.
    signed: int = 0
    #: What the leaves tell that no request asked for: index, and a sentence.
    unrequested: list[tuple[int, str]] = field(default_factory=list)
    #: Of a receipt, as it is on paper; None for an export.
    fingerprint: str | None = None
    #: The newest trusted checkpoint.
    checkpoint: Checkpoint | None = None

    @property
    def is_good(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def find(self, index: int | None, what: str) -> None:
        """Add a finding."""
        self.findings.append(Fault(index, what))
