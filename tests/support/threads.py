"""How many compute threads the tests' contexts and servers have.

One by default: most models of the tests are so small that more are slower. ``PYLLMCANCEL_TEST_THREADS=4 pytest`` runs
everything with four; what holds with one must hold with any number.
"""

from __future__ import annotations

import os

N_THREADS = int(os.environ.get("PYLLMCANCEL_TEST_THREADS", "1"))
