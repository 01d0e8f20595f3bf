"""`python -I -m pilot`: plays the one rollout whose spec stands on the first line of stdin. See `pilot/process.py`.

This module alone reads the environment: the two secrets come in two variables and nowhere else.
"""

import gc
import os
import sys
from contextlib import suppress

if __name__ == "__main__":
    # Nothing that start-up makes is garbage; looking for some among it costs a tenth of the start.
    gc.disable()
    # A plugin of another package has no business in our records, and searching for plugins costs 7 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

    from contract.rollout_records import BROKER_TOKEN_VARIABLE, PROVIDER_KEY_VARIABLE
    from pilot.process import main

    status = main(os.environ.pop(BROKER_TOKEN_VARIABLE, ""), os.environ.pop(PROVIDER_KEY_VARIABLE, None))
    # A log line that a full disk refused is tried again at a usual exit, which then has a status of its own.
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(status)
