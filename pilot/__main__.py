"""`python -I -m pilot`: plays the one rollout whose spec stands on the first line of stdin. See `pilot/process.py`.

This module alone reads the environment: the two secrets come in two variables and nowhere else.
"""

import gc
import os
import sys
import types


def leave_out_plugins() -> None:
    """Keep other packages' pydantic plugins, and the search for them, out of this process.

    A plugin has no business in our records. The search alone imports zip, csv and mail parsers, which are a tenth of a
    pilot's start. A pydantic that looks elsewhere for its plugins still hears of the variable.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    loader = types.ModuleType("pydantic.plugin._loader")
    loader.get_plugins = tuple  # type: ignore[attr-defined]  # a module gets its names this way
    sys.modules[loader.__name__] = loader


if __name__ == "__main__":
    # Nothing that start-up makes is garbage; looking for some among it costs a tenth of the start.
    gc.disable()
    leave_out_plugins()

    from contract.rollout_records import BROKER_TOKEN_VARIABLE, PROVIDER_KEY_VARIABLE
    from pilot.process import main

    sys.exit(main(os.environ.pop(BROKER_TOKEN_VARIABLE, ""), os.environ.pop(PROVIDER_KEY_VARIABLE, None)))
