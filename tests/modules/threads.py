"""Runs in threads that take turns often."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


def faults_of(*runs: Callable[[], object]) -> list[BaseException]:
    """What is raised where all ``runs`` begin at the same time, each in a thread of its own."""
    faults: list[BaseException] = []
    begin = threading.Barrier(len(runs))

    def run(each: Callable[[], object]) -> None:
        try:
            begin.wait()
            each()
        except BaseException as error:
            faults.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(each,)) for each in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return faults
