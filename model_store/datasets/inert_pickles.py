"""Unpickle untrusted files into plain objects, without importing or calling anything that they name."""

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any, ClassVar


class Unread:
    """An object of an unsupported class; none of its code runs."""

    #: Module and name of the class.
    kind = ""

    def __init__(self, *args: object, **options: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __call__(self, *args: object) -> "Unread":
        """Stand in for the class or object that a file creates by calling it."""
        return self

    def append(self, item: object) -> None:
        """Ignore an item of a list of such a class, like `extend`, `add` and `__setitem__`."""

    extend = add = append

    def __setitem__(self, key: object, value: object) -> None:
        pass


#: The objects that pickle operations hash, among those before them.
_HASHED: Mapping[int, Callable[[list[Any]], list[Any]]] = {
    pickle.SETITEM[0]: lambda stack: stack[-2:-1],
    pickle.SETITEMS[0]: lambda stack: stack[::2],
    pickle.DICT[0]: lambda stack: stack[::2],
    pickle.ADDITEMS[0]: lambda stack: stack,
    pickle.FROZENSET[0]: lambda stack: stack,
}


def _checked(code: int, load: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a pickle operation that first checks what it hashes or changes.

    Hashing a tuple of a million levels overflows the stack, which ends the process.
    """

    def checked(unpickler: "InertUnpickler") -> None:
        # The typeshed declares only the C unpickler.
        stack: list[Any] = vars(unpickler)["stack"]
        if code == pickle.BUILD[0] and not isinstance(stack[-2], Unread | dict):
            raise ValueError(f"it changes a {type(stack[-2]).__name__}")
        for key in _HASHED[code](stack) if code in _HASHED else ():
            parts = key if isinstance(key, tuple) else (key,)
            if not all(isinstance(part, str | bytes | int | float | Unread | None) for part in parts):
                raise ValueError(f"a key of a dictionary or set is a {type(key).__name__} of other objects")
        load(unpickler)

    return checked


# The Python implementation, because the C one allocates as many objects as a file declares.
class InertUnpickler(pickle._Unpickler):
    """Builds plain objects and `Unread`; calls only the stand-ins it knows."""

    #: Checked operations, without those that allocate a declared size or refer to classes by number.
    dispatch: ClassVar = {
        code: _checked(code, load)
        for code, load in pickle._Unpickler.dispatch.items()
        if code not in (*pickle.BYTEARRAY8, *pickle.EXT1, *pickle.EXT2, *pickle.EXT4)
    }

    def __init__(self, file: io.BytesIO, *, encoding: str, known: Mapping[str, Any]) -> None:
        """`known` has stand-ins by module and name, and `encoding` is that of Python 2's texts."""
        super().__init__(file, encoding=encoding)
        self._known = known

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a class or function, otherwise an `Unread`."""
        kind = f"{module}.{name}"
        # A separate class for each, since a file may set attributes of what it names.
        return self._known.get(kind) or type("Unread", (Unread,), {"kind": kind})
