"""The deployable workers."""

import os

# Many threads multiplying small matrices fight over a few cores. Has to be set before numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
