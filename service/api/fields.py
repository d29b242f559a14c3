"""Field types that several request bodies share; every one is strict."""

from typing import Annotated

from pydantic import StringConstraints

#: An external node id: any non-empty text of at most 512 characters.
NodeId = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=512)]

#: The caller's own reference: printable, 1 to 200 characters.
Reference = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
