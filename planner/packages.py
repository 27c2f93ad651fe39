"""Imports of other packages: one that is missing, or broken, is one clear error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import MissingPackageError

_INSTALLED_WITH = {"torch": "ogc-plan[pytorch]", "onnxscript": "ogc-plan[pytorch]"}


@contextmanager
def needed(package: str) -> Iterator[None]:
    """Import ``package`` inside. Raises MissingPackageError where that fails."""
    try:
        yield
    except ImportError as error:
        raise _failed(package, error) from error


@contextmanager
def packages_needed() -> Iterator[None]:
    """Import modules of this program inside. Raises MissingPackageError where a package that they import is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        found = missing(error)
        if found is None:
            raise
        raise found from error


def missing(error: ImportError) -> MissingPackageError | None:
    """The error for a module that was not found; None for one of this program, which is a defect."""
    if isinstance(error, MissingPackageError):
        return error
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package in ("", "ogc_plan"):
        return None
    return _failed(package, error)


def _failed(package: str, error: ImportError) -> MissingPackageError:
    wanted = _INSTALLED_WITH.get(package, package)
    wanted = f"'{wanted}'" if "[" in wanted else wanted
    return MissingPackageError(
        f"{package} cannot be imported: {str(error).strip().partition(chr(10))[0]}", remedy=f"pip install {wanted}"
    )
