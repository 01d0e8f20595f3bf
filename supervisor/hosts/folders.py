"""Where a host and its pilot keep what is theirs alone: outside of the run folder, named by the host, private to us.

The names follow from the host's id, so that whoever ends a host after a crash finds its folders without being told.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

SCRATCH: Final = Path("/tmp")


def host_folder(scratch: Path, host_id: str) -> Path:
    """The broker's state: receipts, drawing, the desktop's home."""
    return scratch / f"autocad-bench-{host_id}"


def pilot_home(scratch: Path, host_id: str) -> Path:
    """The home of the process that plays on this host; the desktop sees nothing of it."""
    return scratch / f"autocad-bench-{host_id}-pilot"


def tunnel_folder(scratch: Path, host_id: str) -> Path:
    """The scratch folder of the plugin that carries a tunnel. Short: a socket's name in it has a bounded length."""
    return scratch / f"autocad-bench-{host_id}-tunnel"


def remove_traces(scratch: Path, host_id: str) -> None:
    """Remove what a controller that was killed left here of a host that is elsewhere. Nothing there is no error."""
    for folder in (pilot_home(scratch, host_id), tunnel_folder(scratch, host_id)):
        shutil.rmtree(folder, ignore_errors=True)
