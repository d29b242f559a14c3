"""Sessions and attempts to sign in, by a clock of the test's own."""

from uuid import uuid4

from service.dashboard.sessions import IDLE_S, LIFETIME_S, MAX_SESSIONS, Sessions


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_session_lasts_while_it_is_used_and_no_longer_than_its_lifetime() -> None:
    clock = Clock()
    sessions = Sessions(clock=clock)
    key_id = uuid4()
    token, session = sessions.start(key_id)
    for _ in range(int(LIFETIME_S // IDLE_S)):
        clock.now += IDLE_S
        assert sessions.find(token) == session
    clock.now += 1.0
    assert sessions.find(token) is None
    assert session.key_id == key_id


def test_a_session_that_is_not_used_ends() -> None:
    clock = Clock()
    sessions = Sessions(clock=clock)
    token, _ = sessions.start(uuid4())
    clock.now += IDLE_S + 1.0
    assert sessions.find(token) is None


def test_ending_a_session_ends_that_one_alone() -> None:
    sessions = Sessions()
    (first, _), (second, other) = sessions.start(uuid4()), sessions.start(uuid4())
    sessions.end(first)
    sessions.end("no such token")
    assert sessions.find(first) is None
    assert sessions.find(second) == other
    assert sessions.find("") is None


def test_a_form_belongs_to_one_session() -> None:
    sessions = Sessions()
    (_, first), (_, second) = sessions.start(uuid4()), sessions.start(uuid4())
    assert first.form_token != second.form_token


def test_there_are_never_more_sessions_than_allowed() -> None:
    sessions = Sessions()
    tokens = [sessions.start(uuid4())[0] for _ in range(MAX_SESSIONS + 3)]
    assert [sessions.find(token) is None for token in tokens[:4]] == [True, True, True, False]
