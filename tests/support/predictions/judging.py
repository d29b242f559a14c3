"""Judges which answers were stale, from the askers' records and the known applied versions, and counts questions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.predictions.asker import BINS, Seen

#: Seconds after an event within which questions count as asked right after it.
_AFTER_S = 0.5


@dataclass(frozen=True)
class Claim:
    """From some time on, no version before this one answers a question."""

    version: int
    #: By the wall clock, which is also the database's: `applied_at`.
    moment: float
    #: By boottime, when a client had seen it.
    seen_at: float
    #: Description of the event.
    what: str
    #: The node without probabilities from then on.
    node: str | None = None


@dataclass(frozen=True)
class Verdict:
    """The result of a run."""

    violations: tuple[str, ...]
    claims: int
    #: Claims with a question within half a second that was answered with a version.
    asked_after: int
    answers: int
    statuses: dict[str, int]
    broken: int
    versions: int

    def __str__(self) -> str:
        statuses = ", ".join(f"{count:,} x {status}" for status, count in sorted(self.statuses.items()))
        return (
            f"{sum(self.statuses.values()):,} answers ({statuses}), {self.broken:,} connections broken, "
            f"{self.versions} versions answered, {self.claims} claims, {self.asked_after} of them asked about within "
            f"{_AFTER_S} s, {len(self.violations)} violations"
        )


def judged(seen: Sequence[Seen], claims: Sequence[Claim]) -> Verdict:
    """Judge the records of all askers of one service against the claims."""
    violations = [f"asker {number}: {one}" for number, each in enumerate(seen) for one in _violations(each, claims)]
    statuses, asked = Counter[str](), Counter[int]()
    for each in seen:
        statuses.update(each.statuses)
        asked.update({int(bin_): count for bin_, count in each.asked.items()})
    answered = [any(asked[bin_] for bin_ in _bins_after(claim.moment)) for claim in claims]
    return Verdict(
        tuple(violations),
        len(claims),
        sum(answered),
        asked.total(),
        dict(statuses),
        sum(each.broken for each in seen),
        len({version for each in seen for version in each.versions}),
    )


def _violations(seen: Seen, claims: Sequence[Claim]) -> list[str]:
    found = list(seen.wrong)
    for claim in claims:
        older = {int(text): moments for text, moments in seen.versions.items() if int(text) < claim.version}
        found += [
            f"version {version} answered a question asked {1000 * by:.1f} ms after {claim.what}"
            for version, moments in sorted(older.items())
            if (by := _late(moments, claim)) > 0
        ]
        if claim.node in seen.doomed and (by := _late(seen.doomed[claim.node], claim)) > 0:
            found.append(f"node {claim.node} had probabilities {1000 * by:.1f} ms after {claim.what}")
    return found


def _late(asked_at: Sequence[float], claim: Claim) -> float:
    """Return the seconds from a claim to a question, by the clock with the larger difference."""
    wall, boottime = asked_at
    return max(wall - claim.moment, boottime - claim.seen_at)


def _bins_after(moment: float) -> range:
    first = int(moment * BINS) + 1
    return range(first, first + int(_AFTER_S * BINS))
