"""A ledger in a bucket of an S3-compatible server.

Entries are written with `If-None-Match: *`, so that the server refuses to replace one. Credentials, region and endpoint
come from the standard variables (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`).
"""

import os
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from service.errors import ConfigurationError, Unavailable
from service.ledger.places import WRITE_REMEDY, name_of, number_of

#: The unlearner waits for an answer, and its lease is renewed meanwhile.
_TIMEOUT = timedelta(seconds=10)
_RETRY_FOR = timedelta(seconds=10)


class BucketPlace:
    """Objects below a prefix of a bucket."""

    def __init__(self, store: Any, name: str) -> None:
        """`store` is an obstore.store.S3Store with the prefix set."""
        self._store = store
        self.name = name

    @classmethod
    def at(cls, url: str) -> "BucketPlace":
        """Return the place s3://bucket/prefix. Raises ConfigurationError if obstore is missing, or refuses it."""
        try:
            from obstore.exceptions import BaseError
            from obstore.store import S3Store
        except ImportError:
            raise ConfigurationError(
                "A ledger in a bucket needs the package obstore, which is not installed.",
                "Run `pip install --require-hashes -r requirements-bucket.lock` in Lethe's environment, or install "
                "Lethe with the extra `bucket`.",
            ) from None
        parts = urlsplit(url)
        try:
            store = S3Store(
                parts.netloc,
                prefix=parts.path.strip("/") or None,
                # A server on this machine or a private network, as the operator's endpoint says.
                client_options={
                    "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"),
                    "timeout": _TIMEOUT,
                    "connect_timeout": _TIMEOUT,
                },
                retry_config={"max_retries": 2, "retry_timeout": _RETRY_FOR},
                config={"conditional_put": "etag"},
            )
        except (BaseError, ValueError) as error:
            raise ConfigurationError(
                f"The erasure ledger {url} cannot be opened: {error}", "Correct LETHE_LEDGER or the variables AWS_…."
            ) from error
        return cls(store, url)

    def numbers(self) -> list[int]:
        """Return the numbers of all entries, ascending."""
        with self._explained("read"):
            # Not below the prefix's own folders, where another ledger may be.
            names = [one["path"].rpartition("/")[2] for one in self._store.list_with_delimiter()["objects"]]
        return sorted(number for number in map(number_of, names) if number is not None)

    def read(self, number: int) -> bytes:
        """Return an entry."""
        with self._explained("read"):
            return bytes(self._store.get(name_of(number)).bytes())

    def create(self, number: int, content: bytes) -> bool:
        """Write an entry; return False if the server says that the object exists."""
        from obstore.exceptions import AlreadyExistsError

        with self._explained("written"):
            try:
                self._store.put(name_of(number), content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def remove(self, number: int) -> None:
        """Remove an entry; a missing one is fine."""
        from obstore.exceptions import NotFoundError

        with self._explained("written"):
            try:
                self._store.delete(name_of(number))
            except NotFoundError:
                return

    def _explained(self, done: str) -> "_Explained":
        return _Explained(self.name, done)


class _Explained:
    """Turns the store's errors into Unavailable."""

    def __init__(self, name: str, done: str) -> None:
        self._name = name
        self._done = done

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        from obstore.exceptions import BaseError

        if isinstance(error, BaseError | OSError):
            # The first line: what follows repeats the request, with the signature in its headers.
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise Unavailable(
                f"The erasure ledger {self._name} cannot be {self._done}: {reason}", WRITE_REMEDY
            ) from error
