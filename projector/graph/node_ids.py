"""Which external ids nodes may have, and which names models: one rule for training, imports and requests.

Whatever is trained with must be reachable afterwards: named in a request, on a line of a file, in a log.
"""

import re

#: Most characters of an id.
MAX_CHARACTERS = 512
#: What an id consists of, among what UTF-8 can encode: no control characters and nothing that ends a line.
PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"
#: The same for people.
RULE = f"1 to {MAX_CHARACTERS} characters, none of them a control character or a line break, and no blank first or last"

_ALLOWED = re.compile(PATTERN)
_SURROGATES = re.compile("[\ud800-\udfff]")


def is_allowed(name: object) -> bool:
    """Whether `name` may be the external id of a node, or the name of a model."""
    if not isinstance(name, str) or len(name) > MAX_CHARACTERS or name != name.strip():
        return False
    return _ALLOWED.fullmatch(name) is not None and _SURROGATES.search(name) is None
