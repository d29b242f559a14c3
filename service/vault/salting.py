"""What a request names, and the salts that keep the log from telling it."""

import secrets
from collections.abc import Sequence

from service.domain.kinds import Target, ends_of
from service.domain.records import Targets

#: Bytes of randomness in a salt.
_SALT_BYTES = 16


def salted(subjects: Sequence[Target], reference: str | None) -> Targets:
    """What a request names, with new salts under which the log commits to it."""
    nodes = tuple(subject for subject in subjects if isinstance(subject, str))
    edges = tuple(subject for subject in subjects if not isinstance(subject, str))
    ends = dict.fromkeys(node for subject in subjects for node in ends_of(subject))
    return Targets(
        nodes=nodes,
        edges=edges,
        node_salts={node: secrets.token_hex(_SALT_BYTES) for node in ends},
        reference_salt=None if reference is None else secrets.token_hex(_SALT_BYTES),
    )
