"""Rows of H that several versions of a model share, with a few changed rows kept separately."""

from dataclasses import dataclass

import torch
from torch import Tensor

#: Copy all rows into one matrix once changed rows exceed this share of the shared ones.
_LARGEST_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class KeptRows:
    """H (n, p): a matrix shared with earlier versions, and the rows changed since. Only `forget` writes to them."""

    #: (N, p) float64, and (m, p).
    shared: Tensor
    beside: Tensor
    #: Place of each row of H, (n,) int64: i below N is row i of `shared`, else row i - N of `beside`.
    places: Tensor

    @classmethod
    def of(cls, H: Tensor) -> "KeptRows":
        """Return H (n, p) as one matrix, without a copy."""
        return cls(H, H[:0], torch.arange(H.shape[0], device=H.device))

    @property
    def numel(self) -> int:
        """Number of stored values."""
        return self.shared.numel() + self.beside.numel()

    def rows(self, chosen: Tensor) -> Tensor:
        """Return a copy (k, p) of the rows `chosen` (k,) of H."""
        places, first = self.places[chosen], self.shared.shape[0]
        if not self.beside.shape[0]:
            return self.shared[places]
        out = self.shared.new_empty((places.shape[0], self.shared.shape[1]))
        anew = places >= first
        out[~anew] = self.shared[places[~anew]]
        out[anew] = self.beside[places[anew] - first]
        return out

    def whole(self) -> Tensor:
        """Return H, (n, p); read only."""
        n = self.places.shape[0]
        every = torch.arange(n, device=self.places.device)
        if n == self.shared.shape[0] and bool((self.places == every).all()):
            return self.shared
        return self.rows(every)

    def changed(self, old: Tensor, at: Tensor, rows: Tensor) -> "KeptRows":
        """Return H whose row i was row `old`[i], (n',), with its rows `at` (k,) replaced by `rows` (k, p)."""
        first = self.shared.shape[0] + self.beside.shape[0]
        places = self.places[old]
        places[at] = torch.arange(first, first + rows.shape[0], device=places.device)
        return KeptRows(self.shared, torch.cat([self.beside, rows]), places)

    def settled(self, *, in_one: bool) -> "KeptRows":
        """Return the same rows, in one matrix if `in_one` or if many rows are separate."""
        if in_one or self.beside.shape[0] > _LARGEST_SHARE * self.shared.shape[0]:
            return KeptRows.of(self.whole())
        return self

    def forget(self, used: Tensor) -> None:
        """Overwrite in place all stored rows except the rows of H in the mask `used` (n,)."""
        kept = torch.zeros(self.shared.shape[0] + self.beside.shape[0], dtype=torch.bool, device=self.places.device)
        kept[self.places[used]] = True
        gone = torch.nonzero(~kept)[:, 0]
        first = self.shared.shape[0]
        self.shared[gone[gone < first]] = 0.0
        self.beside[gone[gone >= first] - first] = 0.0
