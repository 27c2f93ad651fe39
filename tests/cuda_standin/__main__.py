"""Runs tests on the stand-in for CUDA, in an environment of their own that is made where it is missing.

    python -m tests.cuda_standin [--environment FOLDER] [--offer] [PYTEST ARGUMENTS]
    python -m tests.cuda_standin --module models.cuda.day_one -o FILE.json --small

Without arguments of pytest it runs tests/cuda, and then tests/adapters with their tensors on the card.
``TEST_DEVICE=cuda`` in the environment does the same for tests/adapters that are named. With ``--module`` it runs a
command of models/cuda. The environment takes about 6 GB of disk. With ``--offer`` none is made: where there is none, a
line says how to make one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

from tests.cuda_standin.build import build, environment_of

ROOT = Path(__file__).parents[2]


def prepare(environment: Path) -> None:
    """An environment with the product, its tests and a CUDA build of torch, at the versions of constraints.txt."""
    venv.create(environment, with_pip=True)
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = environment / "constraints.txt"
    constraints.write_text("\n".join(line for line in pinned if not line.startswith("torch==")) + "\n")
    pip = [environment / "bin/pip", "install", "-q", "-c", constraints]
    subprocess.run([*pip, "-e", f"{ROOT}[test]"], check=True)


def main() -> int:
    """Returns the exit status of pytest or of the command; of two runs of pytest, that of the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-cuda")
    parser.add_argument("--offer", action="store_true")
    parser.add_argument("--module", help="a command that takes the other arguments, instead of pytest")
    options, given = parser.parse_known_args()
    python = options.environment / "bin/python"
    if not python.exists():
        if options.offer:
            print("CUDA tests: not run; `make cuda-standin` makes an environment (6 GB) and runs them")
            return 0
        prepare(options.environment)
    folder = options.environment / "standin"
    build(options.environment, folder)
    paths = os.pathsep.join([str(ROOT / ".src"), str(ROOT)])
    environment = {**environment_of(folder), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}

    def run(*command: str, **more: str) -> int:
        variables = {**environment, **more}
        if command[0] == "pytest" and "TEST_DEVICE" not in variables:  # in tests/adapters trainers would use both cards
            variables.setdefault("STANDIN_DEVICES", "2")
        return subprocess.run([python, "-m", *command], cwd=ROOT, env=variables).returncode

    if options.module:
        return run(options.module, *given)
    if given:
        return run("pytest", "-q", *given)
    # Two processes: tests/adapters move torch's default device, which tests/cuda do not expect.
    statuses = [run("pytest", "-q", "tests/cuda"), run("pytest", "-q", "tests/adapters", TEST_DEVICE="cuda")]
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main())
