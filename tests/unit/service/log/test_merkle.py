"""The tree against published vectors, and against the RFC's recursive definitions written out in `rfc6962`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.log.merkle import (
    EMPTY_ROOT,
    Frontier,
    Subtree,
    consistency_ranges,
    inclusion_ranges,
    is_consistent,
    leaf_hash,
    needed,
    proof,
    root,
    root_by_inclusion,
    subtrees,
)
from tests.support.everyday import every_case
from tests.support.evidence.rfc6962 import mth, path, subproof

#: The leaves, roots and proofs in the tests of Certificate Transparency's reference implementation.
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
#: (index, size) -> inclusion proof.
INCLUSION = {
    (0, 1): [],
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
    (1, 5): [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
#: (old, new) -> consistency proof.
CONSISTENCY = {
    (1, 1): [],
    (1, 8): INCLUSION[0, 8],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): INCLUSION[1, 5][1:],
}


class Tree:
    """A tree with all its complete subtrees, as stored in the database."""

    def __init__(self, leaves: list[bytes]) -> None:
        frontier = Frontier()
        self.hashes: dict[Subtree, bytes] = {}
        for position, leaf in enumerate(leaves):
            self.hashes[Subtree(0, position)] = leaf_hash(leaf)
            self.hashes |= dict(frontier.append(leaf_hash(leaf)))
        self.root = frontier.root

    def inclusion(self, index: int, size: int) -> list[bytes]:
        ranges = inclusion_ranges(index, size)
        return proof(ranges, {subtree: self.hashes[subtree] for subtree in needed(ranges)})

    def consistency(self, old: int, new: int) -> list[bytes]:
        ranges = consistency_ranges(old, new)
        return proof(ranges, {subtree: self.hashes[subtree] for subtree in needed(ranges)})


def numbered(size: int) -> list[bytes]:
    return [str(number).encode() for number in range(size)]


def test_the_empty_tree_has_the_hash_of_nothing() -> None:
    assert root([]) == EMPTY_ROOT == mth([])
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("size", range(1, 9))
def test_roots_are_the_published_ones(size: int) -> None:
    assert root(map(leaf_hash, LEAVES[:size])).hex() == ROOTS[size - 1] == mth(LEAVES[:size]).hex()


@pytest.mark.parametrize(("index", "size"), INCLUSION)
def test_inclusion_proofs_are_the_published_ones(index: int, size: int) -> None:
    assert [digest.hex() for digest in Tree(LEAVES).inclusion(index, size)] == INCLUSION[index, size]


@pytest.mark.parametrize(("old", "new"), CONSISTENCY)
def test_consistency_proofs_are_the_published_ones(old: int, new: int) -> None:
    assert [digest.hex() for digest in Tree(LEAVES).consistency(old, new)] == CONSISTENCY[old, new]


@every_case("size", range(1, 34))
def test_every_proof_of_small_trees_is_the_one_the_rfc_defines_and_verifies(size: int) -> None:
    leaves = numbered(size)
    tree = Tree(leaves)
    assert tree.root == mth(leaves)
    for index in range(size):
        found = tree.inclusion(index, size)
        assert found == path(index, leaves)
        assert root_by_inclusion(index, size, leaf_hash(leaves[index]), found) == tree.root
    for old in range(1, size + 1):
        found = tree.consistency(old, size)
        assert found == subproof(old, leaves, True)
        assert is_consistent(old, size, mth(leaves[:old]), tree.root, found)
    assert is_consistent(0, size, EMPTY_ROOT, tree.root, [])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_proof_that_was_changed_anywhere_does_not_verify(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 200))
    index = data.draw(st.integers(0, size - 1))
    old = data.draw(st.integers(1, size - 1))
    leaves = numbered(size)
    tree = Tree(leaves)
    inclusion, consistency = tree.inclusion(index, size), tree.consistency(old, size)
    digest, old_root = leaf_hash(leaves[index]), mth(leaves[:old])
    assert root_by_inclusion(index, size, digest, inclusion) == tree.root
    assert is_consistent(old, size, old_root, tree.root, consistency)

    for changed in variants(data, inclusion):
        assert root_by_inclusion(index, size, digest, changed) != tree.root
    assert root_by_inclusion(index, size, leaf_hash(b"another"), inclusion) != tree.root
    other = data.draw(st.integers(0, size - 1).filter(lambda place: place != index))
    assert root_by_inclusion(other, size, digest, inclusion) != tree.root
    assert root_by_inclusion(index + size, size, digest, inclusion) is None

    for changed in variants(data, consistency):
        assert not is_consistent(old, size, old_root, tree.root, changed)
    assert not is_consistent(old, size, leaf_hash(b"x"), tree.root, consistency)
    assert not is_consistent(old, size, old_root, leaf_hash(b"x"), consistency)
    assert not is_consistent(size, old, tree.root, old_root, consistency)


def variants(data: st.DataObject, hashes: list[bytes]) -> list[list[bytes]]:
    """Return `hashes` with one changed, one missing, one added."""
    place = data.draw(st.integers(0, len(hashes) - 1))
    flipped = bytes([hashes[place][0] ^ 1, *hashes[place][1:]])
    return [
        [*hashes[:place], flipped, *hashes[place + 1 :]],
        [*hashes[:place], *hashes[place + 1 :]],
        [*hashes, hashes[place]],
    ]


def test_a_tree_goes_on_from_its_frontier() -> None:
    leaves = [leaf_hash(leaf) for leaf in numbered(300)]
    tree = Tree(numbered(300))
    for size in (0, 1, 2, 3, 127, 128, 200, 255, 256, 299):
        frontier = Frontier(size, [tree.hashes[subtree] for subtree in subtrees((0, size))])
        for digest in leaves[size:]:
            frontier.append(digest)
        assert frontier.root == tree.root
    with pytest.raises(ValueError, match="frontier"):
        Frontier(3, [leaves[0]])


@pytest.mark.parametrize(("index", "size"), [(0, 0), (3, 3), (-1, 3)])
def test_there_is_no_proof_of_a_leaf_that_is_not_there(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="no such leaf"):
        inclusion_ranges(index, size)
    assert root_by_inclusion(index, size, leaf_hash(b""), []) is None


@pytest.mark.parametrize(("old", "new"), [(0, 3), (4, 3), (-1, 3)])
def test_there_is_no_consistency_proof_from_an_empty_or_larger_tree(old: int, new: int) -> None:
    with pytest.raises(ValueError, match="consistency"):
        consistency_ranges(old, new)


def test_a_proof_at_a_million_leaves_needs_few_hashes() -> None:
    size = 1_000_000
    for index in (0, 1, 524_287, 524_288, 999_998, 999_999):
        assert len(needed(inclusion_ranges(index, size))) <= 3 * 20
    assert len(needed(consistency_ranges(999_999, size))) <= 3 * 20
