"""``python -m models.graphs NAME -o FILE`` writes one graph, ``--list`` names them all."""

import sys

from models.graphs.families import main

sys.exit(main())
