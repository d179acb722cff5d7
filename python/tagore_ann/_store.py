"""Objects in a store, by obstore: s3, gs, az, or a folder."""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ._errors import Error, FileError, MissingFileError, refused

T = TypeVar("T")

PIECE = 4 << 20
"""Bytes of a ranged read."""

READERS = 16
"""Reads at a time; with `PIECE`, a bound on memory."""

_READING = threading.BoundedSemaphore(READERS)

LARGEST = 4 << 30
"""Bytes of an object that is put by one request, and so by a conditional one. S3 takes 5 GiB."""

_DENIED = {
    "AccessDenied", "AuthorizationHeaderMalformed", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "RequestExpired", "SignatureDoesNotMatch", "TokenRefreshRequired",
}  # fmt: skip


class Begin(NamedTuple):
    """The first bytes of an object, its length, and its version."""

    bytes: bytes
    size: int
    tag: str | None


class Store:
    """The objects below a URL or a folder. A copy in another process opens it anew.

    Errors name the URL, a kind of fault and what to do: never a text of the store, which may hold
    keys.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None, make: bool = False) -> None:
        self.url = url.rstrip("/")
        self.options = dict(options or {})
        self.make = make
        self._opened: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def named(self, name: str) -> str:
        """The URL of an object."""
        return f"{self.url}/{name}"

    def begin(self, name: str, length: int) -> Begin:
        """Reads at most ``length`` first bytes."""

        def read() -> Begin:
            options = {"range": (0, length)}
            try:
                found = _obstore().get(self._store(), name, options=options)
            except _obstore().exceptions.BaseError as error:
                try:
                    head = _obstore().head(self._store(), name)
                except _obstore().exceptions.BaseError:
                    # Answers to HEAD have no body, and so no code of the fault.
                    raise error from None
                # An empty object has no ranges.
                if head["size"] == 0:
                    return Begin(b"", 0, head["e_tag"])
                # Another one may have been put meanwhile.
                found = _obstore().get(self._store(), name, options=options)
            return Begin(bytes(found.bytes()), found.meta["size"], found.meta["e_tag"])

        return self.call(name, read)

    def get(self, name: str) -> bytes:
        """Reads all of a small object."""
        return self.call(name, lambda: bytes(_obstore().get(self._store(), name).bytes()))

    def read(self, name: str, start: int, end: int, tag: str | None = None) -> bytes:
        """Reads a range of bytes, of the version ``tag`` if it is given."""
        options: dict[str, Any] = {"range": (start, end)} | ({"if_match": tag} if tag else {})
        with _READING:
            found = self.call(name, lambda: bytes(_obstore().get(self._store(), name, options=options).bytes()))
        if len(found) != end - start:
            raise FileError(f"{self.named(name)}: found an end at {start + len(found)} bytes, expected {end}")
        return found

    def copy(self, name: str, ranges: list[tuple[int, int]], path: Path, at: int = 0, tag: str | None = None) -> None:
        """Copies ranges of bytes to the same places of a file, moved by ``at``."""
        pieces = [(first, min(end, first + PIECE)) for start, end in ranges for first in range(start, end, PIECE)]
        file = os.open(path, os.O_WRONLY)
        try:

            def piece(bounds: tuple[int, int]) -> None:
                content = memoryview(self.read(name, *bounds, tag))
                place = bounds[0] + at
                while content:
                    written = os.pwrite(file, content, place)
                    content, place = content[written:], place + written

            parallel(piece, pieces)
        finally:
            os.close(file)

    def put(self, name: str, content: Path | bytes, replace: bool = False) -> bool:
        """Writes an object, complete or not at all, and returns whether it is new.

        Without ``replace`` an object of this name stays.
        """
        whole = isinstance(content, bytes) or content.stat().st_size <= LARGEST
        mode = "create" if whole and not replace else "overwrite"

        def write() -> bool:
            try:
                _obstore().put(self._store(), name, content, mode=mode)
            except _obstore().exceptions.AlreadyExistsError:
                return False
            return True

        return self.call(name, write)

    def list(self) -> dict[str, int]:
        """Names and lengths of all objects, without those in folders below."""
        # Where no object is, there may be no folder either.
        found = self.call("", lambda: _obstore().list_with_delimiter(self._store())["objects"])
        return {entry["path"].rsplit("/", 1)[-1]: entry["size"] for entry in found}

    def reader(self, name: str, size: int, tag: str | None) -> io.RawIOBase:
        """Opens an object as a file."""
        return _Reader(self, name, size, tag)

    def _store(self) -> Any:
        if self._opened is None:
            store = _obstore().store
            try:
                if self.url.startswith("file:"):
                    self._opened = store.from_url(self.url, mkdir=self.make)
                elif "://" in self.url:
                    self._opened = store.from_url(self.url, **self.options)
                else:
                    self._opened = store.LocalStore(Path(self.url or "/"), mkdir=self.make)
            except (TypeError, ValueError, _obstore().exceptions.UnknownConfigurationKeyError) as error:
                found = type(error).__name__
            else:
                return self._opened
            raise refused("storage_options", found, f"options of obstore for {self.url.split(':')[0]}")
        return self._opened

    def call(self, name: str, do: Callable[[], T]) -> T:
        """Calls ``do``, which reads or writes the object ``name``. Its errors become ours."""
        try:
            return do()
        except Error:
            raise
        except Exception as error:
            fault = _fault(self.named(name) if name else self.url, error)
        # Outside of the handler: the error of the store is no part of ours.
        raise fault


class _Reader(io.RawIOBase):
    """An object as a file, of which each read is one of the store."""

    def __init__(self, store: Store, name: str, size: int, tag: str | None) -> None:
        self._of, self._size, self._place = (store, name, tag), size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = begin + offset
        return self._place

    def readinto(self, into: Any) -> int:
        store, name, tag = self._of
        end = min(self._size, self._place + len(into))
        if end <= self._place:
            return 0
        found = store.read(name, self._place, end, tag)
        into[: len(found)] = found
        self._place = end
        return len(found)


def whole(url: str | os.PathLike[str], name: str) -> str:
    """A URL, or the path from the root, of the argument ``name``."""
    if not isinstance(url, str | os.PathLike):
        raise refused(name, repr(url), "a URL or a path")
    url = os.fspath(url)
    if "://" not in url:
        return os.path.abspath(url) + ("/" if url.endswith("/") else "")
    if "?" in url or "@" in url.split("://", 1)[1].split("/", 1)[0]:
        raise refused(name, "a URL with a query or a password", "a plain URL, and storage_options")
    return url


def split(url: str, name: str, options: Mapping[str, Any] | None, make: bool = False) -> tuple[Store, str]:
    """The store and the name of the object at ``url``, the argument ``name``."""
    above, _, last = url.rpartition("/")
    if not last or above.endswith(":/"):
        raise refused(name, url, "the URL or the path of an object, such as s3://bucket/base.u8bin")
    return Store(above, options, make), last


def parallel(do: Callable[[T], None], items: list[T]) -> None:
    """Calls ``do`` with each item, some at a time. The first error stops the rest."""
    if len(items) < 2:
        for item in items:
            do(item)
        return
    with ThreadPoolExecutor(READERS) as pool:
        done = [pool.submit(do, item) for item in items]
        try:
            for call in done:
                call.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError:
        raise Error("obstore: found no such package, expected `pip install obstore`") from None
    return obstore


def _fault(url: str, error: Exception) -> Error:
    """The exception of a fault of a store, in words of our own."""
    kind, text = type(error).__name__, str(error)
    code = next(iter(re.findall(r"<Code>(\w+)</Code>", text)), "")
    status = next(iter(re.findall(r"status code: (\d{3})", text)), "")
    if code in ("NoSuchBucket", "ContainerNotFound"):
        return MissingFileError(f"{url}: found no such bucket ({code}), expected one: make it, or correct the URL")
    if code in _DENIED or status in ("401", "403") or kind in ("PermissionDeniedError", "UnauthenticatedError"):
        found = code or status or kind
        return FileError(f"{url}: found access denied ({found}), expected valid credentials: see storage_options")
    if isinstance(error, FileNotFoundError):
        return MissingFileError(f"{url}: found no such object, expected one")
    if "Unable to canonicalize" in text:
        return MissingFileError(f"{url}: found no such folder, expected one")
    if kind == "PreconditionError":
        return FileError(f"{url}: found another version than at the plan, expected the same: plan with another work")
    if kind.startswith("Arrow"):
        return FileError(f"{url}: found no sound Parquet, expected a Parquet file")
    if "Unable to recognise URL" in text:
        return refused("url", url, "s3://, gs://, az://, file:// or a path")
    os_error = next(iter(re.findall(r"([A-Z][\w ]+) \(os error \d+\)", text)), "")
    connection = "no connection" if re.search(r"error sending request|HttpError|connect", text) else ""
    found = code or (f"status {status}" if status else "") or os_error or connection or kind
    return FileError(f"{url}: found {found}, expected an answer of the store: check the URL, the endpoint and the disk")
