"""The exceptions of refold, one per code of its errors."""


class Error(Exception):
    """All errors of refold; the text says what is wrong, where, and what to do."""


class UsageError(Error, ValueError):
    """The caller asked for something that does not exist or is out of range."""


class InputError(Error, ValueError):
    """A file, tensor, key or text is malformed."""


class FileError(Error, OSError):
    """The operating system refused: missing file, disk full, permission."""


class UnsupportedError(Error, NotImplementedError):
    """Valid input, but this build or version cannot handle it."""


class CancelledError(Error):
    """Cancelled, for example by closing a stream."""


class InternalError(Error, RuntimeError):
    """A bug in refold."""


for _class in (Error, UsageError, InputError, FileError, UnsupportedError, CancelledError, InternalError):
    _class.__module__ = "refold"
