"""LibreCAD 2.2 on its own X desktop.

The drawing is `attempt.dxf` in the one folder that the program may write; it is given on the command line, so that
Ctrl+S saves without a dialog. When the model itself quits the program (File > Quit), it is started again on the same
file, a few times; any other end of the program is `cad_died`.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from broker.desktop.desktop import FINAL_S_MAX, HANG_S, AppEnded, Desktop
from broker.desktop.eyes import Settled
from broker.desktop.isolation import IsolationReport, available
from broker.drivers import Acted, DriverState
from broker.drivers.librecad_home import APP_ENV, seed_home
from broker.frame import Frame
from broker.refusal import Refusal
from contract.actions import Action, Finish, Keypress
from contract.broker_api import ErrorCode

ARTIFACT_NAME: Final = "attempt.dxf"
# A model that quits the program is shown it again; one that does nothing else is not served for ever.
RESTARTS_MAX: Final = 5
# Dialogs upon dialogs do not go deeper than this, and a program that opens new ones on Escape is beyond help.
ESCAPES_MAX: Final = 8
DOCUMENTS_MAX: Final = 10
# A disk on which less is free after a save was full in the middle of it. One drawing of the suite has some 20 KB.
SAVE_BYTES_MIN: Final = 256 * 1024
_STATE_OF_CODE: Final[dict[ErrorCode, DriverState]] = {
    ErrorCode.CAD_DIED: "cad_died",
    ErrorCode.CAD_HUNG: "cad_hung",
    ErrorCode.DISPLAY_DIED: "display_died",
}


class LibreCadDriver:
    """See `broker.drivers.Driver`."""

    name = "librecad"
    artifact_name = ARTIFACT_NAME

    def __init__(
        self,
        state_dir: Path,
        *,
        base_env: Mapping[str, str],
        isolation: IsolationReport | None = None,
        hang_s: float = HANG_S,
    ) -> None:
        """`state_dir` takes the drawing and, while it lives, the desktop's own folder.

        After `hang_s` without an answer the program counts as hung.
        """
        self._hang_s = hang_s
        self._state_dir = state_dir
        self._base_env = dict(base_env)
        self._report = isolation or available()
        self._desktop: Desktop | None = None
        self._state: DriverState = "stopped"
        self._restarts = 0
        self._is_cut_off = False
        self._is_aborted = False
        self._on_change: Callable[[], None] | None = None

    def prepare(self) -> None:
        """Bring up X server and window manager."""
        with self._noted():
            self._running_desktop()

    def reset(self, start_drawing: bytes) -> Frame:
        """Fresh home, fresh copy, fresh program; the command line has the focus."""
        with self._noted():
            desktop = self._running_desktop()
            self._state = "stopped"
            desktop.end_app()
            seed_home(desktop.fresh_home())
            for old in desktop.drawings.iterdir():
                shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
            (desktop.drawings / ARTIFACT_NAME).write_bytes(start_drawing)
            self._restarts = 0
            self._is_cut_off = False
            try:
                settled = self._launch(desktop, is_ready=_shows_our_drawing)
            except AppEnded as error:
                raise Refusal(
                    ErrorCode.RESET_FAILED,
                    f"LibreCAD ended with {error.exit_code} while it started",
                    hint="See that librecad and its libraries are installed (scripts/setup-desktop).",
                ) from error
            self._state = "ready"
            return desktop.look(settled)

    def act(self, actions: Sequence[Action]) -> Acted:
        """Each action meets a screen at rest; so does the frame."""
        with self._noted():
            desktop = self._ready_desktop()
            performed = 0
            settled: Settled | None = None
            is_display_lost = False
            try:
                for action in actions:
                    if isinstance(action, Finish):
                        break
                    settled = self._outlive(desktop, functools.partial(desktop.perform, action))
                    performed += 1
            except Refusal as error:
                is_display_lost = error.code is ErrorCode.DISPLAY_DIED
                raise
            finally:
                # An X server that hangs would be asked for ever what is held down.
                if not is_display_lost:
                    desktop.release_all()
            if settled is None or not settled.is_quiet:
                settled = self._outlive(desktop, lambda: desktop.settle(FINAL_S_MAX))
            return Acted(performed=performed, frame=desktop.look(settled))

    def save(self) -> Path:
        """Leave dialogs and commands by Escape, go to our drawing, Ctrl+S."""
        with self._noted():
            desktop = self._ready_desktop()
            self._outlive(desktop, lambda: self._save(desktop))
            # A disk without room cuts the drawing off. The program does not notice, and writes the rest at no later
            # save.
            self._is_cut_off = self._is_cut_off or desktop.free_bytes() < SAVE_BYTES_MIN
            if self._is_cut_off:
                raise Refusal(
                    ErrorCode.SAVE_FAILED,
                    "the host's disk was full, and the saved drawing may be cut off",
                    hint="Free space on the disk that holds the drawings, and play this rollout again.",
                )
            return desktop.keep(ARTIFACT_NAME)

    def state(self) -> DriverState:
        """From any thread: the processes are asked, not the program."""
        desktop = self._desktop
        if self._is_aborted:
            return "stopped"
        if self._state == "ready" and desktop is not None:
            if not desktop.is_up:
                return "display_died"
            if desktop.app_exit_code not in (None, 0):
                return "cad_died"
        return self._state

    def watch(self, on_change: Callable[[], None]) -> None:
        """The end of each process is watched for, whatever else is going on."""
        self._on_change = on_change

    def _tell(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def abort(self) -> None:
        """Kill all; the deed under way fails."""
        self._is_aborted = True
        if self._desktop is not None:
            self._desktop.kill()

    def close(self) -> None:
        """Kill all and remove the desktop's folder; the drawing stays in the state folder."""
        self._state = "stopped"
        if self._desktop is not None:
            self._desktop.kill()
            # Where there is no room for it, the desktop must be ended all the same.
            with contextlib.suppress(OSError):
                self._desktop.keep(ARTIFACT_NAME)
            self._desktop.close()
            self._desktop = None

    def _running_desktop(self) -> Desktop:
        # A killed server takes a moment to be gone, but what it has done to us we know at once.
        if self._desktop is not None and (not self._desktop.is_up or self._state == "display_died"):
            self._desktop.close()
            self._desktop = None
        if self._desktop is None:
            self._desktop = Desktop(
                self._state_dir, report=self._report, base_env=self._base_env, hang_s=self._hang_s, on_end=self._tell
            )
            self._desktop.start()
        if self._is_aborted:
            self._desktop.kill()
        return self._desktop

    def _ready_desktop(self) -> Desktop:
        if self._desktop is None or self._state != "ready":
            code = next((code for code, state in _STATE_OF_CODE.items() if state == self._state), ErrorCode.NOT_RESET)
            raise Refusal(code, "there is no running CAD program", hint="Reset the desktop first.")
        return self._desktop

    def _launch(self, desktop: Desktop, *, is_ready: Callable[[str], bool]) -> Settled:
        drawing = desktop.drawings_inside / ARTIFACT_NAME
        desktop.launch("librecad", ["librecad", str(drawing)], env=APP_ENV, is_ready=is_ready)
        # The first letter after the start would be lost: the command line has no focus until it is given to it.
        settled = desktop.perform(Keypress(keys=["ctrl", "m"]))
        return settled if settled.is_quiet else desktop.settle()

    def _outlive(self, desktop: Desktop, deed: Callable[[], Settled]) -> Settled:
        """Do it; when the model has quit the program by it, show the program again."""
        try:
            return deed()
        except AppEnded as ended:
            if ended.exit_code != 0:
                how = f"signal {_signal_of(ended.exit_code)}" if _signal_of(ended.exit_code) else f"{ended.exit_code}"
                raise _died(f"LibreCAD ended by itself ({how})") from ended
            if self._restarts == RESTARTS_MAX:
                raise _died(f"the model quit LibreCAD more than {RESTARTS_MAX} times") from ended
            self._restarts += 1
            desktop.end_app()
            try:
                # What the model has left of its drawing may be nothing that the program opens: then that is shown.
                return self._launch(desktop, is_ready=_is_main_window)
            except AppEnded as again:
                raise _died(f"LibreCAD did not start again ({again.exit_code})") from again
            except Refusal as again:
                if again.code is not ErrorCode.RESET_FAILED:
                    raise
                raise _died(f"the model quit LibreCAD: {again.message}") from again

    def _save(self, desktop: Desktop) -> Settled:
        _leave_dialogs(desktop)
        for _ in range(DOCUMENTS_MAX):
            if _shows_our_drawing(desktop.link.title(desktop.main_window)):
                break
            # The model has opened another document: go round until ours is in front.
            desktop.perform(Keypress(keys=["ctrl", "tab"]))
        desktop.perform(Keypress(keys=["ctrl", "s"]))
        settled = desktop.settle()
        if desktop.has_dialog():
            _leave_dialogs(desktop)
        return settled

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Remember what ended the desktop."""
        try:
            yield
        except Refusal as error:
            self._state = _STATE_OF_CODE.get(error.code, self._state)
            self._tell()
            raise


def _died(message: str) -> Refusal:
    return Refusal(ErrorCode.CAD_DIED, message, hint="The rollout is void; look at its last frames.")


def _signal_of(exit_code: int) -> int:
    """The number of the signal that ended a process, also seen through the walls; 0 when it exited by itself."""
    if exit_code < 0:
        return -exit_code
    return exit_code - 128 if exit_code > 128 else 0


def _shows_our_drawing(title: str) -> bool:
    return ARTIFACT_NAME in title


def _is_main_window(title: str) -> bool:
    return title.startswith("LibreCAD")


def _leave_dialogs(desktop: Desktop) -> None:
    for _ in range(ESCAPES_MAX):
        desktop.perform(Keypress(keys=["esc"]))
        if not desktop.has_dialog():
            break
    else:
        desktop.link.close_window(desktop.link.window_ids()[-1])
        desktop.settle()
    desktop.link.activate(desktop.main_window)
    # Each step of a command takes one more Escape; four is the deepest that LibreCAD goes.
    for _ in range(4):
        desktop.perform(Keypress(keys=["esc"]))
