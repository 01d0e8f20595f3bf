"""One desktop: X server, window manager, one CAD program, hands and eyes; all of it gone when this process is."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from Xlib.error import ConnectionClosedError, DisplayError

from broker.desktop.eyes import Eyes, Settled
from broker.desktop.folders import home_env, make_folder
from broker.desktop.hands import Hands
from broker.desktop.isolation import (
    INSIDE_COOKIE,
    INSIDE_DRAWINGS,
    INSIDE_HOME,
    IsolationKind,
    IsolationReport,
    build_walls,
)
from broker.desktop.openbox import start_openbox
from broker.desktop.processes import Process, spawn, wait_readable, when_ended
from broker.desktop.xlink import WM_S_MAX, XLink
from broker.desktop.xserver import XServer, start_xserver
from broker.frame import Frame
from broker.refusal import Refusal
from contract.actions import SCREEN_HEIGHT_PX, SCREEN_WIDTH_PX, Action
from contract.broker_api import ErrorCode

# A dialog that takes long to build answers late; one that takes this long will not answer any more.
HANG_S: Final = 10.0
# A CAD window is there in 0.35 s, from a cold disk and on a crowded machine in four.
START_S_MAX: Final = 15.0
# The X server and the window manager clear a dead program's windows away in milliseconds.
WINDOWS_GONE_S_MAX: Final = 5.0
# Bounds of the wait for quiet: between two actions of a list, and before the frame that goes to the model.
BETWEEN_S_MAX: Final = 2.0
FINAL_S_MAX: Final = 5.0
# A program that loses its X server exits at once; which of the two died first shows a moment later.
FIRST_DEATH_S_MAX: Final = 0.05
REST_POINT: Final = (960, 540)
# Whatever folder a process was started in, it may call it so.
OWN_FOLDER: Final = Path("/proc/self/cwd")


class AppEnded(Exception):
    """The CAD program is gone; negative exit codes, and those above 128, are deaths by signal."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Desktop:
    """Used by one thread, but for `kill`. Deeds raise `Refusal`, or `AppEnded` when the CAD program has exited."""

    def __init__(
        self,
        state_dir: Path,
        *,
        report: IsolationReport,
        base_env: Mapping[str, str],
        hang_s: float = HANG_S,
        screen_px: tuple[int, int] = (SCREEN_WIDTH_PX, SCREEN_HEIGHT_PX),
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`base_env` holds PATH and the tags by which every process of a rollout is found.

        After `hang_s` without an answer the CAD program counts as hung. `on_end` is called, on any thread, after a
        process of the desktop has ended, also when it was us who ended it.
        """
        self._on_end = on_end
        self.report = report
        self._hang_s = hang_s
        self._screen_px = screen_px
        self._state_dir = state_dir
        self._base_env = dict(base_env)
        self._walls = build_walls(report)
        self._folder: Path | None = None
        self._server: XServer | None = None
        self._manager: Process | None = None
        self._link: XLink | None = None
        self._hands: Hands | None = None
        self._app: Process | None = None
        self._main_window = 0
        self._eyes: Eyes | None = None
        self._is_ended = threading.Event()

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bring up X server and window manager. Raises `Refusal` with `display_died`; `close` cleans up then too."""
        self._folder = make_folder("desktop", self._walls.scratch_parent(self._state_dir))
        self.home.mkdir(mode=0o700)
        self.drawings.mkdir(mode=0o700, exist_ok=True)
        self._walls.own(self._folder, self.home, self.drawings)
        self._server = start_xserver(self._folder, env=self._base_env, walls=self._walls, size_px=self._screen_px)
        env = {**self._base_env, "DISPLAY": f":{self._server.display}", "HOME": str(self._folder)}
        env["XAUTHORITY"] = str(self._server.cookie_file)
        self._eyes = Eyes(self._server.framebuffer)
        self._manager = start_openbox(self._folder, env=env, walls=self._walls)
        for part in self._display_parts():
            when_ended(part, self._on_end)
        with self._display_errors():
            self._link = XLink(self._server.display, self._server.cookie_file, [self._server.process, self._manager])
            if not self._link.wait_until(self._link.has_manager, START_S_MAX):
                raise Refusal(ErrorCode.DISPLAY_DIED, "the window manager did not start", hint="Is openbox installed?")
            self._hands = Hands(
                self._link.display, catch_up=self.catch_up, rest=lambda: self.settle(BETWEEN_S_MAX), pause=self.pause
            )

    @property
    def is_up(self) -> bool:
        """True while X server and window manager run."""
        return len(self._display_parts()) == 2 and all(part.exit_code is None for part in self._display_parts())

    def _display_parts(self) -> list[Process]:
        # Any thread may ask while another closes the desktop.
        server, manager = self._server, self._manager
        parts = [server.process] if server else []
        return [*parts, manager] if manager else parts

    @property
    def app_exit_code(self) -> int | None:
        """None while the CAD program runs, and when none was started."""
        return self._app.exit_code if self._app else None

    @property
    def home(self) -> Path:
        """The CAD program's home folder, fresh for each launch."""
        assert self._folder is not None
        return self._folder / "home"

    @property
    def drawings(self) -> Path:
        """The one folder, beside its home, in which the CAD program may write."""
        assert self._folder is not None
        return self._folder / "drawings" if self._walls.uid is not None else self._state_dir / "drawing"

    @property
    def drawings_inside(self) -> Path:
        """How the CAD program calls that folder: the same on each desktop, because it shows the name on the screen."""
        return INSIDE_DRAWINGS if self.report.kind is IsolationKind.BUBBLEWRAP else OWN_FOLDER

    def keep(self, name: str) -> Path:
        """Copy a drawing out of the desktop's own folder, if it lies there, to where it outlives the desktop."""
        kept = self._state_dir / "drawing" / name
        saved = self.drawings / name if self._folder is not None else kept
        # A link could name a file that only we may read.
        if saved != kept and saved.is_file() and not saved.is_symlink():
            kept.parent.mkdir(mode=0o700, exist_ok=True)
            shutil.copyfile(saved, kept)
        return kept

    def free_bytes(self) -> int:
        """How much more the CAD program could write beside its drawing."""
        facts = os.statvfs(self.drawings)
        return facts.f_bavail * facts.f_frsize

    def fresh_home(self) -> Path:
        """Empty the home folder; the CAD program must not be running."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(mode=0o700)
        return self.home

    def launch(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str], is_ready: Callable[[str], bool]
    ) -> None:
        """Start the CAD program and return once its window with a title that `is_ready` has the keyboard.

        Home and drawings are given to the desktop's user first. Raises `Refusal` (`reset_failed`).
        """
        assert self._server is not None
        for folder, _, files in os.walk(self.home):
            self._walls.own(Path(folder), *(Path(folder, file) for file in files))
        self._walls.own(self.drawings, *self.drawings.iterdir())
        inside = self.report.kind is IsolationKind.BUBBLEWRAP
        home, cookie = (INSIDE_HOME, INSIDE_COOKIE) if inside else (self.home, self._server.cookie_file)
        wrapped = self._walls.wrap_app(
            argv,
            home=self.home,
            drawings=self.drawings,
            cookie=self._server.cookie_file,
            x_socket=self._server.socket_path,
        )
        full_env = {**self._base_env, **env, **home_env(home), "DISPLAY": f":{self._server.display}"}
        full_env["XAUTHORITY"] = str(cookie)
        with self._display_errors():
            self.hands.release_all()
            self.hands.unlock()
            self.hands.rest_pointer(*REST_POINT)
            self._app = spawn(
                name,
                wrapped,
                env=full_env,
                cwd=self.drawings,
                setpriv_options=self._walls.setpriv_options,
                prefix=self._walls.app_prefix,
            )
            self.link.watched.append(self._app)
            when_ended(self._app, self._note_app_end)
            if not self.link.wait_until(lambda: self._find_main(is_ready), START_S_MAX):
                self._raise_if_dead()
                raise Refusal(
                    ErrorCode.RESET_FAILED,
                    f"{name} showed no drawing within {START_S_MAX:g} s",
                    hint="See whether this machine is overloaded; lower max_concurrency.",
                )
            self.catch_up()

    def _find_main(self, is_ready: Callable[[str], bool]) -> bool:
        for window_id in self.link.window_ids():
            # Titles change without an event on the root window, so ask for the window's own.
            self.link.watch_title(window_id)
            if is_ready(self.link.title(window_id)):
                self._main_window = window_id
                return True
        return False

    def end_app(self) -> None:
        """Kill the CAD program, if it runs, and wait until it is gone."""
        if self._app is not None:
            if self._link is not None and self._app in self._link.watched:
                self._link.watched.remove(self._app)
            self._app.close()
            self._app = None
            self._main_window = 0
            if self.is_up:
                self._wait_until_no_window()

    def _wait_until_no_window(self) -> None:
        # The next program's windows get the same ids and titles: it must not be taken for the dead one.
        with self._display_errors():
            if not self.link.wait_until(lambda: not self.link.window_ids(), WINDOWS_GONE_S_MAX):
                raise Refusal(ErrorCode.DISPLAY_DIED, "windows outlive their program", hint="End this host.")

    def kill(self) -> None:
        """End every process at once, from any thread. Waits return; deeds under way raise."""
        self._is_ended.set()
        for part in (self._app, self._server, self._manager):
            if part is not None:
                part.kill()

    def close(self) -> None:
        """End everything and remove its files, but not the drawing. A second call does nothing."""
        self._is_ended.set()
        if self._link is not None:
            self._link.close()
            self._link = None
        for part in (self._app, self._server, self._manager):
            if part is not None:
                part.close()
        self._app = self._server = self._manager = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self._walls.close()

    # -- hands ------------------------------------------------------------------------------------------------------

    @property
    def link(self) -> XLink:
        """The connection to the X server."""
        assert self._link is not None, "the desktop was not started"
        return self._link

    @property
    def hands(self) -> Hands:
        """Mouse and keyboard."""
        assert self._hands is not None, "the desktop was not started"
        return self._hands

    @property
    def eyes(self) -> Eyes:
        """What looks at the screen."""
        assert self._eyes is not None, "the desktop was not started"
        return self._eyes

    @property
    def main_window(self) -> int:
        """The CAD program's main window."""
        return self._main_window

    def perform(self, action: Action) -> Settled:
        """Carry out one action and wait for quiet, so that the next one meets a screen at rest."""
        with self._display_errors():
            self.hands.perform(action)
        return self.settle(BETWEEN_S_MAX)

    def release_all(self) -> None:
        """Let go of every key and button. Never raises: a dead desktop holds nothing."""
        with contextlib.suppress(Refusal), self._display_errors():
            self.hands.release_all()
            self.link.sync()

    def pause(self, seconds: float) -> None:
        """Let time pass; ends early, by raising, when the desktop is ended or a part of it has died."""
        if wait_readable([process.pidfd for process in self.link.watched], seconds):
            self._raise_if_dead()

    # -- eyes -------------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Return once the window manager and the CAD program have handled all input so far, and what came of it.

        Input goes through the window manager to the program; a dialog that the program opens goes back through the
        window manager, which gives it the keyboard, and the program learns of that: hence two rounds.
        """
        for _ in range(2):
            self.link.pass_window_manager(min(WM_S_MAX, self._hang_s))
            if self._main_window:
                self._ping()
                self._ping()

    def settle(self, quiet_s_max: float = FINAL_S_MAX) -> Settled:
        """Wait until nothing changes on the screen any more, for at most about `quiet_s_max` after the barriers."""
        began = time.monotonic()
        with self._display_errors():
            self.catch_up()
            deadline = time.monotonic() + quiet_s_max
            digest = self.eyes.wait_quiet(deadline=deadline, doze=self._doze)
            while digest is not None:
                self._ping()
                if self.eyes.digest() == digest:
                    break
                digest = self.eyes.wait_quiet(deadline=deadline, doze=self._doze)
        return Settled(is_quiet=digest is not None, took_s=time.monotonic() - began)

    def look(self, settled: Settled) -> Frame:
        """The screen as a PNG, with a verdict."""
        return self.eyes.look(settled, has_dialog=self.has_dialog())

    def has_dialog(self) -> bool:
        """True when another window of the CAD program lies above its main one."""
        with self._display_errors():
            windows = self.link.window_ids()
        return bool(windows) and windows[-1] != self._main_window

    def _doze(self, seconds: float) -> None:
        wait_readable([process.pidfd for process in self.link.watched], seconds)

    # -- trouble ----------------------------------------------------------------------------------------------------

    def _ping(self) -> None:
        if self.link.ping(self._main_window, self._hang_s):
            return
        self._raise_if_dead()
        raise Refusal(
            ErrorCode.CAD_HUNG,
            f"the CAD program gave no answer for {self._hang_s:g} s",
            hint="Its last command is too large or has hung; look at the last frame.",
        )

    def _note_app_end(self) -> None:
        for part in self._display_parts():
            part.wait(FIRST_DEATH_S_MAX)
        self._on_end()

    def _raise_if_dead(self) -> None:
        if self._is_ended.is_set():
            raise _ended()
        for part in self._display_parts():
            if part.wait(FIRST_DEATH_S_MAX if self.app_exit_code is not None else 0.0):
                raise Refusal(
                    ErrorCode.DISPLAY_DIED, f"{part.name} died ({part.exit_code})", hint="End this host; start another."
                )
        if self.app_exit_code is not None:
            raise AppEnded(self.app_exit_code)

    @contextlib.contextmanager
    def _display_errors(self) -> Iterator[None]:
        try:
            yield
        except (ConnectionClosedError, DisplayError, OSError) as error:
            if self._is_ended.is_set():
                raise _ended() from error
            raise Refusal(
                ErrorCode.DISPLAY_DIED, f"the X server is gone: {error}", hint="End this host; start another."
            ) from error


def _ended() -> Refusal:
    return Refusal(ErrorCode.INTERNAL, "the desktop is being ended", hint="Take another host.")
