"""Where compiled kernels are kept between runs, and the removal of those that no version has used for long.

The folder lives in the user's cache, not next to the installed sources: those may be read-only, and files that pip did
not write there would outlive an uninstall and shadow the next version. It is named by the digest of the sources of all
strategies: numba itself does not notice a change in a function that another one inlined.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

UNUSED_S = 30 * 24 * 3600
"""A folder of another version is removed once it has not been used for so long, in seconds."""
_PREFIX = "kernels-"
_REMOVED = "removed-"


def cache_folder() -> str:
    """A writable folder for compiled kernels: in the user's cache, else a temporary one until this process ends."""
    folder = _user_cache() / "ogc-plan" / f"{_PREFIX}{_digest(Path(__file__).parents[1])}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            os.utime(folder)  # loading a kernel leaves the time of the folder as it is
    except OSError:
        return _temporary()
    remove_unused(folder)
    return str(folder)


def remove_unused(own: Path) -> None:
    """Remove the folders next to ``own`` that other versions have not used for `UNUSED_S`.

    A folder is renamed first, so that several processes may do this at once and a version that is used again finds all
    of its kernels or none. numba compiles again what it does not find. What cannot be removed stays.
    """
    oldest = time.time() - UNUSED_S
    with suppress(OSError):
        for folder in own.parent.iterdir():
            if folder == own or not folder.name.startswith((_PREFIX, _REMOVED + _PREFIX)):
                continue
            with suppress(OSError):
                if folder.is_symlink() or not folder.is_dir() or folder.stat().st_mtime > oldest:
                    continue
                doomed = folder
                if not folder.name.startswith(_REMOVED):
                    doomed = folder.rename(folder.with_name(f"{_REMOVED}{folder.name}-{os.getpid()}"))
                shutil.rmtree(doomed, ignore_errors=True)


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or tempfile.gettempdir())
    if sys.platform == "darwin":
        return Path(os.path.expanduser("~/Library/Caches"))
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def _digest(folder: Path) -> str:
    sources = hashlib.sha256()
    for source in sorted(folder.rglob("*.py")):
        sources.update(source.read_bytes())
    return sources.hexdigest()[:16]


def _temporary() -> str:
    folder, owner = tempfile.mkdtemp(prefix="ogc-plan-kernels-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a fork
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
