"""How many compute threads the tests' contexts and servers have.

One by default: most models of the tests are so small that more are slower. ``PYLLMCANCEL_TEST_THREADS=4 pytest`` runs
everything with four; what holds with one must hold with any number. But there are never more than this process may use
cores: threads spin at each of a step's hundred barriers, and two on one core wait there for each other's time slices.
"""

import os

N_THREADS = min(int(os.environ.get("PYLLMCANCEL_TEST_THREADS", "1")), len(os.sched_getaffinity(0)))
