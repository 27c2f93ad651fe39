"""Memory snapshots that other people published: where they are, and the bytes that they must have."""

from __future__ import annotations

import hashlib
import json
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from models.cuda.snapshots.reading import LARGEST_FILE_NBYTES, SnapshotError

TIME_LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class Published:
    """A file of a public repository on GitHub, at a commit, with the hash of its bytes."""

    repository: str
    commit: str
    path: str
    sha256: str

    @property
    def address(self) -> str:
        """Where GitHub has the file."""
        return f"https://github.com/{self.repository}/raw/{self.commit}/{self.path}"

    def fetch(self, folder: Path | None) -> bytes:
        """The bytes of the file: from ``folder/OWNER/NAME``, a checkout or a git directory, else from GitHub.

        Raises SnapshotError where it cannot be had, or is another file than the listed one.
        """
        data = self._downloaded() if folder is None else self._from(folder / self.repository)
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise SnapshotError(f"it has sha256 {found}, not {self.sha256}")
        return data

    def _from(self, clone: Path) -> bytes:
        if (clone / self.path).is_file():
            return (clone / self.path).read_bytes()
        for commit in (self.commit, "HEAD"):  # a shallow clone may have a later commit alone
            done = subprocess.run(["git", "-C", clone, "show", f"{commit}:{self.path}"], capture_output=True)
            if done.returncode == 0:
                return done.stdout
        raise SnapshotError(f"the folder has no {self.repository} with {self.path}")

    def _downloaded(self) -> bytes:
        try:
            with urllib.request.urlopen(self.address, timeout=TIME_LIMIT_S) as answer:
                return bytes(answer.read(LARGEST_FILE_NBYTES + 1))
        except OSError as error:
            raise SnapshotError(f"{self.address} cannot be had: {error}") from None


FILES = tuple(Published(**entry) for entry in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8")))
"""Every file of listing.json."""
