"""The rule for external ids of nodes and names of models, shared by training, imports and requests.

Every trained node must remain addressable: in a request, on a line of a file, in a log.
"""

import re

#: Maximum length of an id in characters.
MAX_CHARACTERS = 512
#: Allowed ids, within valid UTF-8: no control characters or line separators.
PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"
#: The rule in words.
RULE = f"1 to {MAX_CHARACTERS} characters, none of them a control character or a line break, and no blank first or last"

_ALLOWED = re.compile(PATTERN)
_SURROGATES = re.compile("[\ud800-\udfff]")


def is_allowed(name: object) -> bool:
    """Return whether `name` may be the external id of a node, or the name of a model."""
    if not isinstance(name, str) or len(name) > MAX_CHARACTERS or name != name.strip():
        return False
    return _ALLOWED.fullmatch(name) is not None and _SURROGATES.search(name) is None
