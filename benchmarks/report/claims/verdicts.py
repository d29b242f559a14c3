"""How results judge a claim.

A claim is judged in every measured case (a dataset, a share, a method it names) by a margin that is positive if it
holds. A case is undecided if the margin is zero, or within the 95 % interval of its mean over the seeds.

* reproduced: it holds in most cases and none contradicts it, or a test shows it for every graph. A claim that
  something can or could be so only needs most cases.
* holds in part: it holds in some cases, and others contradict it or most are undecided.
* not reproduced in our setting: it holds in no case, and the paper's setting is another, or some cases are undecided.
* refuted: a counterexample contradicts what is printed, or every case does in the paper's own setting.
* not testable here: the data cannot be reached.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isclose

from benchmarks.report.results import Results

#: Margins below this are ties.
_TIE = 1e-12


class Verdict(StrEnum):
    """The status of a claim."""

    REPRODUCED = "reproduced"
    IN_PART = "holds in part"
    NOT_REPRODUCED = "not reproduced in our setting"
    REFUTED = "refuted"
    UNREACHABLE = "not testable here"
    UNMEASURED = "not measured yet"


class Source(StrEnum):
    """Whose statement it is: the sections of the report."""

    PAPER = "The paper’s claims"
    MISPRINTS = "Misprints"
    OURS = "What we found ourselves"
    CERTIFIED = "Claims of Chien et al."


class Outcome(StrEnum):
    """What one case shows."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Case:
    """One case that tests a claim."""

    #: Positive if the claim holds; larger is clearer.
    margin: float
    words: str
    #: What cases are counted by: a dataset, or a part of the claim.
    group: str
    #: Half the 95 % interval of the margin over the seeds; 0 if it is not a mean.
    doubt: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """Whether the claim holds in this case."""
        if isclose(self.margin, 0.0, abs_tol=_TIE) or abs(self.margin) <= self.doubt:
            return Outcome.UNDECIDED
        return Outcome.HOLDS if self.margin > 0 else Outcome.FAILS


#: Cases up to this number are all shown on the first page.
_FEW = 2
#: What the other cases do, for one and for several.
_REST = {
    Outcome.FAILS: ("contradicts it", "contradict it"),
    Outcome.UNDECIDED: ("is undecided", "are undecided"),
}
Judge = Callable[[Results], list[Case]]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, in its own scope."""

    name: str
    where: str
    text: str
    #: None if the data cannot be reached.
    judge: Judge | None
    #: Why our result differs, or the context of the verdict.
    because: str
    #: The test that shows a few nodes for which the claim is false: FILE::TEST below tests/unit/benchmarks.
    example: str = ""
    #: The example contradicts the statement as printed, even if it holds in everything that was measured.
    general: bool = False
    #: The test that shows the claim for every graph: FILE::TEST below tests/unit.
    shown: str = ""
    #: How our setting differs from the one that the paper makes the statement for.
    setting: str = ""
    #: What “remaining” means in the measurement, if the claim depends on it.
    remaining: str = ""
    #: The paper says that it “can” or “could” be so, which a case without it does not contradict.
    possible: bool = False
    source: Source = Source.PAPER


@dataclass(frozen=True)
class Finding:
    """A claim and its verdict."""

    claim: Claim
    verdict: Verdict
    words: str
    #: The count, and the figures of a few cases, for the first page.
    brief: str = ""


def in_words(verdicts: Sequence[Verdict]) -> list[str]:
    """Return how many claims have each verdict, for those that some have."""
    counts = {verdict: verdicts.count(verdict) for verdict in Verdict if verdict in verdicts}
    return [
        f"{n} {'hold in part' if verdict is Verdict.IN_PART and n > 1 else verdict}" for verdict, n in counts.items()
    ]


def found(claim: Claim, results: Results) -> Finding:
    """Judge `claim` by `results`."""
    if claim.judge is None:
        return Finding(claim, Verdict.UNREACHABLE, "The data cannot be reached here.")
    cases = claim.judge(results)
    counted = _counted(cases)
    brief = " ".join([counted, *(case.words for case in cases)]) if len(cases) <= _FEW else counted
    words = " ".join(filter(None, (counted, _by_group(cases), _extremes(cases))))
    if claim.general:
        return Finding(claim, Verdict.REFUTED, f"{words} A counterexample contradicts what is printed.".strip(), brief)
    if not cases and claim.shown:
        return Finding(claim, Verdict.REPRODUCED, "It is algebra, which a test checks.", "A test shows it.")
    if not cases:
        return Finding(claim, Verdict.UNMEASURED, "Nothing was measured yet.")
    return Finding(claim, _verdict(cases, differs=bool(claim.setting), possible=claim.possible), words, brief)


def _verdict(cases: Sequence[Case], *, differs: bool, possible: bool) -> Verdict:
    counts = Counter(case.outcome for case in cases)
    if counts[Outcome.HOLDS]:
        most = 2 * counts[Outcome.HOLDS] > len(cases) and (possible or not counts[Outcome.FAILS])
        return Verdict.REPRODUCED if most else Verdict.IN_PART
    if differs or counts[Outcome.UNDECIDED]:
        return Verdict.NOT_REPRODUCED
    return Verdict.REFUTED


def _counted(cases: Sequence[Case]) -> str:
    """Count the cases in which the claim holds."""
    if not cases:
        return ""
    counts = Counter(case.outcome for case in cases)
    holds = counts[Outcome.HOLDS]
    if len(cases) == 1 or holds == len(cases):
        return f"It {cases[0].outcome if len(cases) == 1 else 'holds'} in {_all(len(cases))}."
    if not holds and not counts[Outcome.UNDECIDED]:
        return f"It fails in {_all(len(cases))}."
    words = f"It holds in {holds} of {len(cases)} cases"
    rest = [f"{counts[each]} {words[counts[each] > 1]}" for each, words in _REST.items() if counts[each]]
    return words + (f"; {' and '.join(rest)}." if rest else ".")


def _by_group(cases: Sequence[Case]) -> str:
    """Count the cases of each group, if the claim holds in some of them and not in all."""
    outcomes: dict[str, list[Outcome]] = {}
    for case in cases:
        outcomes.setdefault(case.group, []).append(case.outcome)
    holds = sum(found.count(Outcome.HOLDS) for found in outcomes.values())
    if len(outcomes) < 2 or holds in (0, len(cases)):
        return ""
    shares = [f"{group}: {found.count(Outcome.HOLDS)} of {len(found)}" for group, found in outcomes.items()]
    return f"By group: {'; '.join(shares)}."


def _extremes(cases: Sequence[Case]) -> str:
    """Describe the strongest case against the claim, or else the weakest for it, and the strongest for it."""
    if not cases:
        return ""
    failing, holding = ([case for case in cases if case.outcome is each] for each in (Outcome.FAILS, Outcome.HOLDS))
    worst = min(failing or cases, key=lambda case: case.margin)
    best = max(holding or cases, key=lambda case: case.margin)
    if worst.outcome is Outcome.HOLDS:
        return f"Weakest case: {worst.words}"
    words = f"{'Strongest case against it' if worst.outcome is Outcome.FAILS else 'Weakest case'}: {worst.words}"
    return f"{words} Strongest case for it: {best.words}" if best.outcome is Outcome.HOLDS else words


def _all(count: int) -> str:
    return {1: "the one case measured", 2: "both cases measured"}.get(count, f"all {count} cases measured")
