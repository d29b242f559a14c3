"""The Merkle tree of RFC 6962: hashes of leaf ranges, proofs, and their verification. No I/O.

A *subtree* is complete: `Subtree(level, position)` covers the 2^level leaves from position * 2^level on. Only such
subtrees are stored. They never change, a leaf completes at most log2(n) of them, and the hash of any range that a proof
needs is folded from at most log2(n) of them.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

HASH_BYTES = 32
#: Root of the empty tree (RFC 6962, 2.1).
EMPTY_ROOT = hashlib.sha256(b"").digest()


@dataclass(frozen=True, order=True)
class Subtree:
    """The complete subtree over leaves position * 2^level to (position + 1) * 2^level, exclusive."""

    level: int
    position: int


#: A range of leaves with an exclusive end.
Range = tuple[int, int]


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf: SHA-256(0x00 || data)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node: SHA-256(0x01 || left || right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def subtrees(span: Range) -> tuple[Subtree, ...]:
    """Split a range into its largest complete subtrees, from the left; the first one's size must divide the start."""
    start, end = span
    found = []
    while start < end:
        level = (end - start).bit_length() - 1
        found.append(Subtree(level, start >> level))
        start += 1 << level
    return tuple(found)


def fold(hashes: Sequence[bytes]) -> bytes:
    """Return the hash of a range from those of its `subtrees`; the empty tree's root for none."""
    if not hashes:
        return EMPTY_ROOT
    result = hashes[-1]
    for left in reversed(hashes[:-1]):
        result = node_hash(left, result)
    return result


def root(leaf_hashes: Iterable[bytes]) -> bytes:
    """Return the root over `leaf_hashes`; memory grows with log2 of their number."""
    tree = Frontier()
    for digest in leaf_hashes:
        tree.append(digest)
    return tree.root


class Frontier:
    """The right edge of a growing tree: the hashes of `subtrees((0, size))`, all that an append needs."""

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        """Continue a tree of `size` leaves; `hashes` are those of its `subtrees`, from the left."""
        if len(hashes) != size.bit_count():
            raise ValueError("the frontier does not fit the size")
        self.size = size
        self._hashes = list(hashes)

    @property
    def root(self) -> bytes:
        """The current root."""
        return fold(self._hashes)

    def append(self, digest: bytes) -> list[tuple[Subtree, bytes]]:
        """Add a leaf's hash; return the subtrees that it completes above the leaves, lowest first."""
        completed = []
        level, position = 0, self.size
        while position & 1:
            digest = node_hash(self._hashes.pop(), digest)
            level, position = level + 1, position >> 1
            completed.append((Subtree(level, position), digest))
        self._hashes.append(digest)
        self.size += 1
        return completed


def inclusion_ranges(index: int, size: int) -> tuple[Range, ...]:
    """Return the ranges whose hashes are PATH(index, D[size]), the inclusion proof (RFC 6962, 2.1.1), lowest first.

    Raises ValueError unless 0 <= index < size.
    """
    if not 0 <= index < size:
        raise ValueError("a tree of this size has no such leaf")
    start, end = 0, size
    found: list[Range] = []
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            found.append((middle, end))
            end = middle
        else:
            found.append((start, middle))
            start = middle
    return tuple(reversed(found))


def consistency_ranges(old: int, new: int) -> tuple[Range, ...]:
    """Return the ranges whose hashes are PROOF(old, D[new]), the consistency proof (RFC 6962, 2.1.2).

    Raises ValueError unless 0 < old <= new. For equal sizes the proof is empty.
    """
    if not 0 < old <= new:
        raise ValueError("a consistency proof needs a non-empty tree and one that is at least as large")
    start, end = 0, new
    found: list[Range] = []
    while old != end:
        middle = start + _split(end - start)
        if old <= middle:
            found.append((middle, end))
            end = middle
        else:
            found.append((start, middle))
            start = middle
    # The verifier already has the hash of the old tree.
    if start > 0:
        found.append((start, end))
    return tuple(reversed(found))


def needed(ranges: Iterable[Range]) -> set[Subtree]:
    """Return the subtrees whose hashes `proof` needs for `ranges`."""
    return {subtree for span in ranges for subtree in subtrees(span)}


def proof(ranges: Iterable[Range], hashes: Mapping[Subtree, bytes]) -> list[bytes]:
    """Return the proof made of the hashes of `ranges`; `hashes` must contain all subtrees `needed`."""
    return [fold([hashes[subtree] for subtree in subtrees(span)]) for span in ranges]


def root_by_inclusion(index: int, size: int, digest: bytes, path: Sequence[bytes]) -> bytes | None:
    """Return the root of the tree of `size` leaves with a leaf of hash `digest` at `index`, from its inclusion proof.

    None if a proof for this place has another length (RFC 9162, 2.1.3.2).
    """
    if not 0 <= index < size:
        return None
    node, last = index, size - 1
    for sibling in path:
        if last == 0:
            return None
        if node & 1 or node == last:
            digest = node_hash(sibling, digest)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            digest = node_hash(digest, sibling)
        node, last = node >> 1, last >> 1
    return digest if last == 0 else None


def is_consistent(old: int, new: int, old_root: bytes, new_root: bytes, path: Sequence[bytes]) -> bool:
    """Return whether `path` proves that the tree of `new` leaves extends that of `old` leaves (RFC 9162, 2.1.4.2).

    Every tree is consistent with the empty one and with itself, by an empty proof.
    """
    if old == new:
        return not path and old_root == new_root
    if old == 0:
        return not path and old_root == EMPTY_ROOT
    if not 0 < old < new or not path:
        return False
    hashes = iter(path if old & (old - 1) else [old_root, *path])
    first = second = next(hashes)
    node, last = old - 1, new - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    for sibling in hashes:
        if last == 0:
            return False
        if node & 1 or node == last:
            first, second = node_hash(sibling, first), node_hash(sibling, second)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            second = node_hash(second, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and first == old_root and second == new_root


def _split(width: int) -> int:
    """Return the largest power of two below `width`, which is at least 2."""
    return 1 << ((width - 1).bit_length() - 1)
