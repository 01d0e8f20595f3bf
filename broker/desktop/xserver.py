"""One Xvfb: 1920x1080, its own cookie, no network, its framebuffer in memory that we map."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.desktop.folders import make_folder
from broker.desktop.framebuffer import Framebuffer
from broker.desktop.isolation import Walls, is_desktop_user
from broker.desktop.processes import Process, read_line, spawn
from broker.desktop.xauth import write_cookie
from broker.refusal import Refusal
from contract.actions import SCREEN_HEIGHT_PX, SCREEN_WIDTH_PX
from contract.broker_api import ErrorCode

# Up in 0.07 s when warm, 0.4 s from a cold disk; four times that on a loaded machine is still far from this.
START_S_MAX: Final = 10.0
SOCKET_DIR: Final = Path("/tmp/.X11-unix")
MEMORY_DIR: Final = Path("/dev/shm")
# Between bind and listen a socket of a starting server refuses connections; no start takes this long.
STALE_AFTER_S: Final = 10.0


@dataclass(slots=True)
class XServer:
    """A running X server. `display` is its number; `cookie_file` opens it."""

    process: Process
    display: int
    cookie_file: Path
    framebuffer: Framebuffer

    @property
    def socket_path(self) -> Path:
        """The socket by which programs reach it."""
        return SOCKET_DIR / f"X{self.display}"

    def kill(self) -> None:
        """End it at once, from any thread."""
        # A killed server leaves its socket behind. Removed while the server still holds the number, the file cannot be
        # that of a new server with the same number.
        if self.process.exit_code is None:
            _remove_traces(self.display)
        self.process.kill()

    def close(self) -> None:
        """End it and unmap its screen."""
        self.kill()
        self.process.close()
        self.framebuffer.close()


def start_xserver(
    folder: Path,
    *,
    env: Mapping[str, str],
    walls: Walls,
    size_px: tuple[int, int] = (SCREEN_WIDTH_PX, SCREEN_HEIGHT_PX),
) -> XServer:
    """Start an X server whose cookie and log lie in `folder`. Raises `Refusal` with `display_died`."""
    remove_stale_sockets()
    cookie_file = folder / "xauthority"
    write_cookie(cookie_file)
    memory = MEMORY_DIR if MEMORY_DIR.is_dir() else folder
    with contextlib.ExitStack() as undo:
        screen_dir = make_folder("screen", memory)
        undo.callback(_remove_screen_dir, screen_dir)
        walls.own(cookie_file, screen_dir)
        log = undo.enter_context((folder / "xserver.log").open("w+b"))
        process, display = _spawn(cookie_file, screen_dir, log.fileno(), env=env, walls=walls, size_px=size_px)
        if display is None:
            process.close()
            log.seek(0)
            raise _not_started(log.read().decode(errors="replace"))
        # Mapped by both, the file needs no name any more: it is gone when the last of us is, even after SIGKILL.
        framebuffer = Framebuffer(screen_dir / "Xvfb_screen0")
        return XServer(process=process, display=display, cookie_file=cookie_file, framebuffer=framebuffer)


def _spawn(
    cookie_file: Path,
    screen_dir: Path,
    log: int,
    *,
    env: Mapping[str, str],
    walls: Walls,
    size_px: tuple[int, int],
) -> tuple[Process, int | None]:
    reader, writer = os.pipe()
    try:
        # No `-nolisten local`: without the abstract socket a second server takes the same number (and the same file).
        argv = ["Xvfb", "-displayfd", str(writer), "-screen", "0", f"{size_px[0]}x{size_px[1]}x24"]
        argv += ["-auth", str(cookie_file), "-nolisten", "tcp", "-noreset", "-dpi", "96", "-s", "0"]
        argv += ["-fbdir", str(screen_dir)]
        options = walls.setpriv_options
        process = spawn(
            "Xvfb", argv, env=env, cwd=cookie_file.parent, stderr=log, pass_fds=[writer], setpriv_options=options
        )
        os.close(writer)
        writer = -1
        # The number and its newline are written apart; a pipe that closes between them kills the server.
        line = read_line(reader, until=time.monotonic() + START_S_MAX, process=process)
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    return process, int(line) if line is not None and line.strip().isdigit() else None


def _not_started(log: str) -> Refusal:
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "it said nothing")
    return Refusal(
        ErrorCode.DISPLAY_DIED,
        f"the X server did not start: {last}",
        hint="See that Xvfb is installed (scripts/setup-desktop) and that /tmp/.X11-unix is writable.",
    )


def remove_stale_sockets() -> None:
    """Remove sockets and locks that killed X servers of this user left behind."""
    with contextlib.suppress(OSError):
        for path in SOCKET_DIR.iterdir():
            match = re.fullmatch(r"X(\d+)", path.name)
            if match and _is_stale(path):
                _remove_traces(int(match[1]))


def _is_stale(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        facts = path.lstat()
        if not is_desktop_user(facts.st_uid) or time.time() - facts.st_mtime < STALE_AFTER_S:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(str(path)) == errno.ECONNREFUSED
    return False


def _remove_traces(display: int) -> None:
    for path in (SOCKET_DIR / f"X{display}", Path(f"/tmp/.X{display}-lock")):
        with contextlib.suppress(OSError):
            path.unlink()


def _remove_screen_dir(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / "Xvfb_screen0").unlink(missing_ok=True)
        folder.rmdir()
