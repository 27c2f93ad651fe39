"""The fixtures of the other tests of the command line."""

from tests.cli.conftest import model, plan_file, run

__all__ = ["model", "plan_file", "run"]
