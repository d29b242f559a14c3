"""Opening what requests name."""

from service.domain.records import QueuedRequest, Targets
from service.vault.encryption import NotDecrypted, decrypt
from service.vault.request_keys import RequestKeys


def decrypt_targets(request: QueuedRequest, request_keys: RequestKeys) -> Targets | None:
    """What a request names; None when its key is missing or does not fit, so that nobody can tell any more."""
    key = request_keys.get(request.id, request.key_slot)
    if key is None or request.ciphertext is None:
        return None
    try:
        return decrypt(request.ciphertext, key, request.id)
    except NotDecrypted:
        return None
