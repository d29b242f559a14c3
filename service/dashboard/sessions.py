"""Who is signed in: sessions in this process's memory, each behind an unguessable token in a cookie.

Only a hash of a token is kept, a session ends for good when its owner signs out, and a restart ends all of them.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

#: Seconds after which a session ends whatever is done with it, and without any request.
LIFETIME_S = 12 * 3600.0
IDLE_S = 2 * 3600.0
#: How many sessions there can be; a further one ends the oldest.
MAX_SESSIONS = 1_000


@dataclass(frozen=True)
class Session:
    """One sign-in with an API key."""

    key_id: UUID
    #: What every form of this session carries, and no other site can know.
    form_token: str
    #: Monotonic time of the sign-in (seconds).
    started_at: float

    def owns(self, form_token: str) -> bool:
        """Whether a form was made for this session."""
        return hmac.compare_digest(self.form_token.encode(), form_token.encode("utf-8", "surrogatepass"))


class Sessions:
    """The sessions of one process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}
        #: Monotonic time of the last request by token hash.
        self._seen: dict[bytes, float] = {}

    def start(self, key_id: UUID) -> tuple[str, Session]:
        """Begin a session with a key; returns its token, 256 random bits, and the session."""
        token = secrets.token_urlsafe(32)
        now = self._clock()
        session = Session(key_id, secrets.token_urlsafe(32), now)
        while len(self._sessions) >= MAX_SESSIONS:
            self._forget(next(iter(self._sessions)))
        self._sessions[_hash(token)] = session
        self._seen[_hash(token)] = now
        return token, session

    def find(self, token: str) -> Session | None:
        """The session behind a token, None when there is none or it has ended; counts as a sign of life."""
        name = _hash(token)
        session = self._sessions.get(name)
        if session is None:
            return None
        now = self._clock()
        if now - session.started_at > LIFETIME_S or now - self._seen[name] > IDLE_S:
            self._forget(name)
            return None
        self._seen[name] = now
        return session

    def end(self, token: str) -> None:
        """End a session; nothing happens when there is none."""
        self._forget(_hash(token))

    def _forget(self, name: bytes) -> None:
        self._sessions.pop(name, None)
        self._seen.pop(name, None)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
