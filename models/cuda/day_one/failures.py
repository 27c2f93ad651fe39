"""A plugin of pytest that prints each failure when it happens: a run that is cut off still tells why."""

from __future__ import annotations

import pytest

LINES = 12
"""The last lines of a failure that are printed."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print the end of what failed."""
    if report.failed:
        told = report.longreprtext.rstrip().splitlines()[-LINES:]
        print(f"\nfailed: {report.nodeid}", *told, sep="\n", flush=True)
