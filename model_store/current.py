"""CURRENT: which version of a model is the committed one, and the digest of its manifest."""

from pathlib import Path

from model_store.disk.durable import damaged, read_file, remove_file, rename, write_file
from model_store.versions import StoreConflict, VersionRef, Versions

CURRENT = "CURRENT"


class Current:
    """The file CURRENT of a store."""

    def __init__(self, folder: Path, versions: Versions) -> None:
        self.path = folder / CURRENT
        self._versions = versions

    def read(self) -> VersionRef:
        """Return the version that it names. Raises StoreDamaged if it names no existing version."""
        try:
            folder, digest, end = read_file(self.path).decode("ascii").split("\n")
            ref = VersionRef.parse(folder)
        except ValueError as error:
            raise damaged(self.path, "does not name a version: it is truncated or altered") from error
        if end or self._versions.digest(ref) != digest:
            raise damaged(self.path, f"does not have the digest of version {ref.folder}")
        return ref

    def replace(self, ref: VersionRef) -> None:
        """Make it name a version. Raises StoreConflict if it already names a later one.

        It never goes back, even if a writer was overtaken in the middle of this call and continues: its prepared file
        is removed, and a writer that prepares a new one sees the later version first.
        """
        content = f"{ref.folder}\n{self._versions.digest(ref)}\n".encode()
        prepared = self.path.with_name(f".{CURRENT}-{ref.folder}")
        while True:
            write_file(prepared, [content])
            if self.path.exists() and self.read() > ref:
                remove_file(prepared)
                raise _overtaken(ref, self.read())
            try:
                rename(prepared, self.path)
            except FileNotFoundError:
                if self.read() > ref:
                    raise _overtaken(ref, self.read()) from None
            self.remove_prepared(below_fencing=ref.fencing - 1)
            if read_file(self.path) == content:
                return

    def remove_prepared(self, *, below_fencing: int) -> None:
        """Remove files prepared as CURRENT with a fencing number of at most `below_fencing`."""
        for path in sorted(self.path.parent.glob(f".{CURRENT}-*")):
            if VersionRef.parse(path.name.removeprefix(f".{CURRENT}-")).fencing <= below_fencing:
                remove_file(path)


def _overtaken(ref: VersionRef, current: VersionRef) -> StoreConflict:
    return StoreConflict(
        f"CURRENT names version {current.folder}, which is later than {ref.folder}.",
        "Another unlearner has continued; read the pointer in the database again.",
    )
