"""Rows of H as several versions of a model share them: most as they were, a few anew."""

from dataclasses import dataclass

import torch
from torch import Tensor

#: Rows beside the shared ones, as a share of these, from which on all are copied into one matrix.
_LARGEST_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class KeptRows:
    """H (n, p), in a matrix that earlier versions share and one of rows that changed since; never written to."""

    #: (N, p) float64, and (m, p).
    shared: Tensor
    beside: Tensor
    #: Where each row of H is: below N in `shared`, else N less in `beside`, (n,) int64.
    places: Tensor

    @classmethod
    def of(cls, H: Tensor) -> "KeptRows":
        """H (n, p) in one matrix, which is kept."""
        return cls(H, H[:0], torch.arange(H.shape[0], device=H.device))

    @property
    def numel(self) -> int:
        """How many numbers they are."""
        return self.shared.numel() + self.beside.numel()

    def rows(self, chosen: Tensor) -> Tensor:
        """The rows `chosen` (k,) of H, a copy (k, p)."""
        places, first = self.places[chosen], self.shared.shape[0]
        if not self.beside.shape[0]:
            return self.shared[places]
        out = self.shared.new_empty((places.shape[0], self.shared.shape[1]))
        anew = places >= first
        out[~anew] = self.shared[places[~anew]]
        out[anew] = self.beside[places[anew] - first]
        return out

    def whole(self) -> Tensor:
        """H, (n, p), not to be written to."""
        n = self.places.shape[0]
        every = torch.arange(n, device=self.places.device)
        if n == self.shared.shape[0] and bool((self.places == every).all()):
            return self.shared
        return self.rows(every)

    def changed(self, old: Tensor, at: Tensor, rows: Tensor) -> "KeptRows":
        """H whose row i was row `old`[i], (n',), but for its rows `at` (k,), which are `rows` (k, p)."""
        first = self.shared.shape[0] + self.beside.shape[0]
        places = self.places[old]
        places[at] = torch.arange(first, first + rows.shape[0], device=places.device)
        return KeptRows(self.shared, torch.cat([self.beside, rows]), places)

    def settled(self, *, in_one: bool) -> "KeptRows":
        """The same in one matrix, if that is asked for or many rows lie beside the others."""
        if in_one or self.beside.shape[0] > _LARGEST_SHARE * self.shared.shape[0]:
            return KeptRows.of(self.whole())
        return self

    def forget(self, used: Tensor) -> None:
        """Overwrites, in place, all rows but those of H that the mask `used` (n,) names."""
        kept = torch.zeros(self.shared.shape[0] + self.beside.shape[0], dtype=torch.bool, device=self.places.device)
        kept[self.places[used]] = True
        gone = torch.nonzero(~kept)[:, 0]
        first = self.shared.shape[0]
        self.shared[gone[gone < first]] = 0.0
        self.beside[gone[gone >= first] - first] = 0.0
