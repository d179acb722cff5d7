"""Exceptions of the package."""


class Error(Exception):
    """The base of all errors of this package. The text is one line: fault, expectation, remedy."""

    def __str__(self) -> str:
        # An OSError with a number would print that in place of its text.
        return str(self.args[0]) if self.args else ""


class ArgumentError(Error, ValueError):
    """An argument out of its range, of a wrong type, or at odds with another."""


class FileError(Error, OSError):
    """A file that cannot be read or written, or has unexpected content."""


class MissingFileError(FileError, FileNotFoundError):
    """A file that does not exist."""


class OutOfMemoryError(Error, MemoryError):
    """Memory of the device or of the host that is not there. The text names what would help."""


class DeviceError(Error, RuntimeError):
    """A device that is missing or has failed."""


def refused(name: str, found: object, expected: str) -> ArgumentError:
    """The error of an argument, in the words of all errors."""
    text = " ".join(str(found).split())
    if len(text) > 160:
        text = text[:157] + "..."
    return ArgumentError(f"{name}: found {text}, expected {expected}")
