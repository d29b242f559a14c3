import base64
import hashlib
from collections.abc import Callable

import pytest

from service.errors import ConfigurationError
from service.log.checkpoints import Checkpoint, NotVerified, Signer, VerifierKey, read, sign, verify

ORIGIN = "lethe/0123456789abcdef"
CHECKPOINT = Checkpoint(ORIGIN, 12, hashlib.sha256(b"root").digest())
OLD, NEW, FOREIGN = (Signer(ORIGIN, bytes([number]) * 32) for number in (1, 2, 3))


def test_the_published_example_of_a_signed_note_verifies() -> None:
    """From the documentation of golang.org/x/mod/sumdb/note, where the format comes from."""
    key = VerifierKey.parse("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    text = b"If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
    signature = base64.b64decode(
        "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
    )
    assert signature[:4] == key.id
    assert key.verifies(signature[4:], text)
    assert not key.verifies(signature[4:], text + b"!")


def test_a_checkpoint_is_written_as_c2sp_has_it() -> None:
    note = sign(CHECKPOINT, [OLD])
    lines = note.split("\n")
    assert lines[:4] == [ORIGIN, "12", base64.b64encode(CHECKPOINT.root).decode(), ""]
    assert lines[4].startswith(f"— {ORIGIN} ")
    assert lines[5:] == [""]
    assert base64.b64decode(lines[4].split(" ")[2])[:4] == OLD.public.id
    assert read(note) == CHECKPOINT == verify(note, [OLD.public])


def test_while_keys_are_changed_either_verifies() -> None:
    note = sign(CHECKPOINT, [OLD, NEW])
    assert verify(note, [OLD.public]) == verify(note, [NEW.public]) == CHECKPOINT
    assert verify(note, [FOREIGN.public, NEW.public]) == CHECKPOINT


def test_a_checkpoint_signed_by_another_key_is_refused() -> None:
    with pytest.raises(NotVerified, match="not signed by a trusted key"):
        verify(sign(CHECKPOINT, [FOREIGN]), [OLD.public, NEW.public])


def test_a_checkpoint_of_another_log_is_refused_even_if_the_key_signed_it() -> None:
    """A key may only sign notes of its own name, so that no note of one log passes for another's."""
    other = Checkpoint("lethe/other", 12, CHECKPOINT.root)
    with pytest.raises(NotVerified, match="not signed"):
        verify(sign(other, [OLD]), [OLD.public])


@pytest.mark.parametrize(
    "change",
    [
        lambda note: note.replace("\n12\n", "\n13\n"),
        lambda note: note.replace(ORIGIN + "\n12", "lethe/other\n12"),
        lambda note: note.replace("\n12\n", "\n012\n"),
        lambda note: note.replace("\n12\n", "\n-12\n"),
        lambda note: note.replace("\n\n", "\nan extension\n\n"),
        lambda note: note[:-1],
        lambda note: note + "\n",
        lambda note: note.replace("\n\n", "\n"),
        lambda note: note.replace("—", "-"),
        lambda note: note.partition("\n\n")[0] + "\n\n",
        lambda note: "",
        lambda note: note[:-9] + ("A" if note[-9] != "A" else "B") + note[-8:],
    ],
)
def test_a_note_that_was_changed_is_refused(change: Callable[[str], str]) -> None:
    changed = change(sign(CHECKPOINT, [OLD]))
    assert changed != sign(CHECKPOINT, [OLD])
    with pytest.raises(NotVerified):
        verify(changed, [OLD.public])


def test_a_bad_signature_of_a_trusted_key_is_refused_even_beside_a_good_one() -> None:
    text, _, block = sign(CHECKPOINT, [OLD, NEW]).partition("\n\n")
    first, second, _ = block.split("\n")
    mixed = f"{text}\n\n{first}\n{second.rpartition(' ')[0]} " + base64.b64encode(NEW.public.id + bytes(64)).decode()
    with pytest.raises(NotVerified, match="did not sign"):
        verify(mixed + "\n", [OLD.public, NEW.public])
    assert verify(mixed + "\n", [OLD.public]) == CHECKPOINT


def test_a_public_key_is_read_as_it_is_printed() -> None:
    assert VerifierKey.parse(f" {OLD.public}\n") == OLD.public


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lethe",
        "lethe+00000000+AAAA",
        f"other+{OLD.public.id.hex()}+{str(OLD.public).rpartition('+')[2]}",
        str(OLD.public)[:-4] + "AAAA",
        str(OLD.public).replace("+A", "+B", 1),
    ],
)
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        VerifierKey.parse(text)
