from uuid import uuid4

import pytest

from service.access.request_keys import NotDecrypted, decrypt, encrypt
from service.domain.records import NodeContent, Targets
from service.errors import BodyTooLarge


@pytest.mark.parametrize(
    "targets",
    [
        Targets(nodes=("12", "57"), node_salts={"12": "aa", "57": "bb"}, reference_salt="cc"),
        Targets(edges=(("1", "2"), ("é", "\u0000"))),
        Targets(
            nodes=("12", "57", "58"),
            edges=(("12", "57"),),
            content={
                "12": NodeContent((0.1, -2.0), "a class", rejoin=True),
                "57": NodeContent({"3": 1.5, "1000": 0.1}, (0.25, 3.0)),
                "58": NodeContent(None, "a class"),
            },
        ),
        Targets(),
    ],
)
def test_what_was_sealed_comes_back(targets: Targets) -> None:
    request_id, key = uuid4(), bytes(range(32))
    assert decrypt(encrypt(targets, key, request_id), key, request_id) == targets


def test_more_content_than_the_database_takes_is_refused_by_name() -> None:
    content = {str(node): NodeContent(tuple([0.1] * 2000)) for node in range(1100)}
    targets = Targets(nodes=tuple(content), content=content)
    with pytest.raises(BodyTooLarge, match="of at most 8000000"):
        encrypt(targets, bytes(32), uuid4())


def test_the_sealed_bytes_show_neither_ids_nor_equality() -> None:
    request_id, key = uuid4(), bytes(range(32))
    targets = Targets(nodes=("a-long-external-id",))
    first, second = encrypt(targets, key, request_id), encrypt(targets, key, request_id)
    assert b"a-long-external-id" not in first
    assert first != second


def test_another_key_another_request_or_altered_bytes_do_not_open() -> None:
    request_id, key = uuid4(), bytes(range(32))
    sealed = encrypt(Targets(nodes=("12",)), key, request_id)
    with pytest.raises(NotDecrypted):
        decrypt(sealed, bytes(32), request_id)
    with pytest.raises(NotDecrypted):
        decrypt(sealed, key, uuid4())
    for position in range(len(sealed)):
        altered = bytearray(sealed)
        altered[position] ^= 1
        with pytest.raises(NotDecrypted):
            decrypt(bytes(altered), key, request_id)
    with pytest.raises(NotDecrypted):
        decrypt(b"", key, request_id)
