"""Our connection to one X server: barriers that tell when the window manager and the CAD program have caught up.

* Window-manager barrier: ask for the frame extents of a window of ours; the answer comes after all earlier events.
* Application barrier: `_NET_WM_PING`, answered by the application's event loop. An answer may overtake input that
  arrived in the same bunch, so a barrier is two pings, one after the other.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from Xlib import X
from Xlib.display import Display
from Xlib.error import ConnectionClosedError, DisplayConnectionError, XError
from Xlib.protocol.event import ClientMessage

from broker.desktop.processes import Process, wait_readable
from broker.refusal import Refusal
from contract.broker_api import ErrorCode

# The window manager answers in 1 ms; it does nothing that could take it this long.
WM_S_MAX: Final = 5.0
CONNECT_S_MAX: Final = 5.0

_connecting = threading.Lock()


@dataclass(frozen=True, slots=True)
class ClientWindow:
    """A managed window and its title."""

    id: int
    title: str


class XLink:
    """One connection, used by one thread. The death of a watched process ends a wait.

    `parts` are the X server and the window manager; a CAD program may be added to `watched` while it runs.

    Raises `Refusal` with `display_died` when the X server or the window manager is gone.
    """

    def __init__(self, display: int, cookie_file: Path, parts: Sequence[Process]) -> None:
        self._parts = tuple(parts)
        self.watched = list(parts)
        self.display = _connect(display, cookie_file)
        # Windows come and go while we speak of them; a request about one that is gone is no error.
        self.display.set_error_handler(lambda error, request: None)
        self.root = self.display.screen().root
        self._atoms: dict[str, int] = {}
        self._serial = 0
        self._events: list[Any] = []
        self.root.change_attributes(event_mask=X.StructureNotifyMask | X.SubstructureNotifyMask | X.PropertyChangeMask)
        self._own = self.root.create_window(
            0, 0, 1, 1, 0, 0, X.InputOnly, X.CopyFromParent, event_mask=X.PropertyChangeMask
        )
        self.display.sync()

    def close(self) -> None:
        """Hang up. The server may be gone already."""
        with _gone_is_fine():
            self.display.close()

    def atom(self, name: str) -> int:
        """The number of a name, asked for once."""
        if name not in self._atoms:
            self._atoms[name] = self.display.intern_atom(name)
        return self._atoms[name]

    def sync(self) -> None:
        """Return once the server has carried out all that we sent."""
        self.display.sync()

    # -- barriers ---------------------------------------------------------------------------------------------------

    def pass_window_manager(self, timeout_s: float = WM_S_MAX) -> None:
        """Return once the window manager has handled all that happened before this call."""
        extents = self.atom("_NET_FRAME_EXTENTS")
        request = ClientMessage(
            window=self._own, client_type=self.atom("_NET_REQUEST_FRAME_EXTENTS"), data=(32, [0, 0, 0, 0, 0])
        )
        self._drop_events()
        mask = X.SubstructureNotifyMask | X.SubstructureRedirectMask
        self.root.send_event(request, event_mask=mask)

        def is_answer(event: Any) -> bool:
            return bool(event.type == X.PropertyNotify and event.window.id == self._own.id and event.atom == extents)

        # A CAD program that has died is no reason for the window manager to be silent.
        if not self._wait_event(is_answer, timeout_s, self._parts):
            raise Refusal(
                ErrorCode.DISPLAY_DIED,
                f"the window manager gave no answer for {timeout_s:g} s",
                hint="End this host; its desktop is broken.",
            )

    def ping(self, window_id: int, timeout_s: float) -> bool:
        """One ping. False when the application gave no answer in time, or has died."""
        self._serial += 1
        serial = self._serial
        window = self.display.create_resource_object("window", window_id)
        data = [self.atom("_NET_WM_PING"), serial, window_id, 0, 0]
        protocols = self.atom("WM_PROTOCOLS")
        window.send_event(ClientMessage(window=window, client_type=protocols, data=(32, data)), event_mask=0)

        def is_answer(event: Any) -> bool:
            return bool(event.type == X.ClientMessage and event.client_type == protocols and event.data[1][1] == serial)

        return self._wait_event(is_answer, timeout_s, self.watched)

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float) -> bool:
        """Ask again after every event from the server until it is true. False at the deadline or at a watched death."""
        deadline = time.monotonic() + timeout_s
        while not is_true():
            if not self._wait_event(lambda event: True, deadline - time.monotonic(), self.watched):
                return is_true()
        return True

    def _wait_event(self, is_answer: Callable[[Any], bool], timeout_s: float, watched: Sequence[Process]) -> bool:
        deadline = time.monotonic() + timeout_s
        self.display.flush()
        descriptors = [self.display.fileno(), *(process.pidfd for process in watched)]
        while True:
            while self.display.pending_events():
                if is_answer(self.display.next_event()):
                    return True
            left_s = deadline - time.monotonic()
            ready = wait_readable(descriptors, left_s) if left_s > 0 else []
            if self.display.fileno() not in ready:
                return False

    def _drop_events(self) -> None:
        while self.display.pending_events():
            self.display.next_event()

    # -- windows ----------------------------------------------------------------------------------------------------

    def windows(self) -> list[ClientWindow]:
        """The managed windows, the topmost last."""
        stacking = self.root.get_full_property(self.atom("_NET_CLIENT_LIST_STACKING"), X.AnyPropertyType)
        return [ClientWindow(id=int(wid), title=self._title(int(wid))) for wid in (stacking.value if stacking else [])]

    def window_ids(self) -> list[int]:
        """The ids of the managed windows, the topmost last; cheaper than `windows`."""
        stacking = self.root.get_full_property(self.atom("_NET_CLIENT_LIST_STACKING"), X.AnyPropertyType)
        return [int(wid) for wid in (stacking.value if stacking else [])]

    def title(self, window_id: int) -> str:
        """The window's title; empty when it is gone."""
        return self._title(window_id)

    def watch_title(self, window_id: int) -> None:
        """Have changes of the window's title end a `wait_until`."""
        window = self.display.create_resource_object("window", window_id)
        window.change_attributes(event_mask=X.PropertyChangeMask)

    def has_manager(self) -> bool:
        """True once a window manager runs."""
        return self.root.get_full_property(self.atom("_NET_SUPPORTING_WM_CHECK"), X.AnyPropertyType) is not None

    def activate(self, window_id: int) -> None:
        """Ask the window manager to raise and focus a window."""
        self._ask(window_id, "_NET_ACTIVE_WINDOW", [2, X.CurrentTime, 0, 0, 0])

    def close_window(self, window_id: int) -> None:
        """Ask for a window to be closed, as its close button would."""
        self._ask(window_id, "_NET_CLOSE_WINDOW", [X.CurrentTime, 2, 0, 0, 0])

    def _ask(self, window_id: int, request: str, data: list[int]) -> None:
        window = self.display.create_resource_object("window", window_id)
        event = ClientMessage(window=window, client_type=self.atom(request), data=(32, data))
        self.root.send_event(event, event_mask=X.SubstructureNotifyMask | X.SubstructureRedirectMask)
        self.display.flush()

    def _title(self, window_id: int) -> str:
        window = self.display.create_resource_object("window", window_id)
        for name, kind in (("_NET_WM_NAME", X.AnyPropertyType), ("WM_NAME", X.AnyPropertyType)):
            try:
                found = window.get_full_property(self.atom(name), kind)
            except XError:
                return ""
            if found is not None:
                value = found.value
                return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return ""


def _connect(display: int, cookie_file: Path) -> Display:
    # python-xlib takes the cookie file from the environment alone. One thread at a time may say which.
    with _connecting:
        before = os.environ.get("XAUTHORITY")
        os.environ["XAUTHORITY"] = str(cookie_file)
        try:
            return Display(f":{display}")
        except (DisplayConnectionError, ConnectionClosedError, OSError) as error:
            raise Refusal(
                ErrorCode.DISPLAY_DIED,
                f"the X server at display :{display} does not let us in: {error}",
                hint="End this host and start another.",
            ) from error
        finally:
            if before is None:
                del os.environ["XAUTHORITY"]
            else:
                os.environ["XAUTHORITY"] = before


class _gone_is_fine:  # noqa: N801 - reads as a word in a with statement
    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        return kind is not None and issubclass(kind, (ConnectionClosedError, OSError))
