"""Everything headlong raises on purpose::

    HeadlongError
    ├── InputError              what was passed in (also a ValueError)
    │   ├── ShapeError          wrong rank, wrong size, k > vocab
    │   ├── DtypeError          a type that is not read (also a TypeError)
    │   ├── NonFiniteError      NaN or inf where numbers were expected
    │   ├── IdError             class ids that are out of range (also an IndexError)
    │   └── OptionError         an unknown method, an option out of range, options that contradict each other
    ├── StoreError              a file that cannot be read or written (also an OSError)
    │   ├── MissingFileError    there is no such file (also a FileNotFoundError)
    │   ├── MalformedFileError  cut off, damaged, or contradicting itself (also a ValueError)
    │   ├── VersionError        written by a newer headlong
    │   ├── WrongLayerError     an engine saved for other weights
    │   └── MissingTensorError  the named tensor is not there (also a KeyError)
    ├── UnsupportedError        a method or argument that this kind of engine lacks (also a NotImplementedError)
    │   └── AbsentError         a name of another library's interface that is not here (also an AttributeError)
    ├── DataError               a corpus or data set that is absent or not what it should be
    ├── PeerError               a process of a group died, is late, or made a different call
    ├── KernelError             the native module is absent, or the CPU lacks the level that was asked for
    └── MissingPackageError     an optional package is not installed (also an ImportError)

A message says what came, what was expected and what to do. The command line prints it as one line and exits with 2.
"""

from __future__ import annotations


class HeadlongError(Exception):
    """The root: ``except HeadlongError`` catches every fault that headlong reports."""


class InputError(HeadlongError, ValueError):
    """What was passed in cannot be used."""


class ShapeError(InputError):
    """An array of the wrong rank or size, or a ``k`` beyond the vocabulary."""


class DtypeError(InputError, TypeError):
    """An array, tensor or argument of a type that is not read here."""


class NonFiniteError(InputError):
    """NaN or infinity where finite numbers were expected, or a training run on its way there."""


class IdError(InputError, IndexError):
    """Class ids outside ``0..vocab-1``."""


class OptionError(InputError):
    """An unknown method or option, a value out of range, or options that contradict each other."""


class StoreError(HeadlongError, OSError):
    """A file that cannot be read or written."""


class MissingFileError(StoreError, FileNotFoundError):
    """A path where there is no file."""


class MalformedFileError(StoreError, ValueError):
    """A file that is cut off, damaged, or contradicts itself."""


class VersionError(StoreError):
    """A file written by a newer headlong."""


class WrongLayerError(StoreError):
    """An engine that was saved for other weights."""


class MissingTensorError(StoreError, KeyError):
    """A file without the tensor that was named."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class UnsupportedError(HeadlongError, NotImplementedError):
    """A verb or an argument that this kind of engine does not have; the message names the kind that has it."""


class AbsentError(UnsupportedError, AttributeError):
    """A name of another library's interface that is not here; the message says what to call instead."""


class DataError(HeadlongError):
    """A corpus or data set that is absent, or whose bytes are not the expected ones."""


class PeerError(HeadlongError):
    """Another process of a group died, did not answer within the timeout, or made a different call."""


class KernelError(HeadlongError):
    """The native module is absent, or ``HEADLONG_ISA`` asks for a level that this CPU lacks."""


class MissingPackageError(HeadlongError, ImportError):
    """An optional package that is not installed; the message names the extra that brings it."""


def named(value: object) -> str:
    """The type of a value with its article: "an ExpertsLayer"."""
    return an(type(value).__name__)


def an(name: str) -> str:
    """A name that somebody else gave, with its article: "an ndarray", "an .npy"."""
    spelt = name.startswith((".n", "nd"))  # letter by letter
    return f"{'an' if spelt or name[:1] in {*'AEIOaeio'} else 'a'} {name}"  # a ufunc


def cause(error: Exception) -> str:
    """The system's message about a file, without the error number and the path."""
    return str(getattr(error, "strerror", None) or error)
