"""How far plans are from real training steps, in bytes, bits and seconds.

    python -m models.fidelity step -o models/results/fidelity.json
    python -m models.fidelity executor -o models/results/executor_fidelity.json
    python -m models.fidelity networks -o models/results/network_fidelity.json
    python -m models.fidelity formulas -o models/results/formulas.json
    python -m models.fidelity times -o models/results/time_fidelity.json
    python -m models.fidelity cap --arch resnet50 --budget 4GB

Each kind has its own options: ``python -m models.fidelity KIND --help``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

# isort: split
from models.fidelity import cap, executor, formulas, networks, step, times
from models.reporting.command_line import add_output, command_parser

KINDS = {
    "step": step, "executor": executor, "networks": networks, "formulas": formulas, "times": times, "cap": cap,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine what the command line asks for, print the tables and write the results."""
    parser = command_parser("models.fidelity", __doc__)
    kinds = parser.add_subparsers(metavar="KIND", required=True)
    for name, kind in KINDS.items():
        described = kind.__doc__ or ""
        chosen = kinds.add_parser(
            name,
            help=described.splitlines()[0],
            description=described,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        kind.add_options(chosen)
        add_output(chosen)
        chosen.set_defaults(run=kind.run)
    options = parser.parse_args(arguments)
    options.arguments = arguments
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
