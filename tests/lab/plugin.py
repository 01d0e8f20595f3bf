"""A stand-in for AWS's Session Manager plugin, and the means to make it fail.

The file is both: a module for tests, and the program itself, which `StandIn.installed` copies under the plugin's name.
The official plugin refuses every stream that is not AWS's, so that no test can use it. The stand-in has the same
arguments, environment variable, output and signals; its stream is `tcp://127.0.0.1:PORT`, and the bytes are forwarded
as they are. Needs nothing but the standard library, and starts in some tens of milliseconds.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

NAME = "session-manager-plugin"
VERSION = "1.2.896.0"
RESPONSE_VARIABLE = "AWS_SSM_START_SESSION_RESPONSE"
# What the program ends with when a secret could be read from its arguments.
SECRET_IN_ARGV = 97
# Go's io.Copy, which feeds the real one, reads so much at once.
COPY_BYTES = 32_768
# Payload of one message of the data channel.
MESSAGE_BYTES = 1_024
# A frame of the multiplexer has so long a head; a connection's first data travels behind one more frame.
FRAME_HEAD_BYTES = 8


@dataclass(frozen=True, slots=True)
class PluginFaults:
    """How one start of the plugin goes wrong; the default does not. Bytes are counted since it is ready, both ways.

    `hangs_after_bytes=0` is the zombie: the port is open and nothing answers. `ends_after_bytes` is an end in good
    order, exit status 0 with `says`; `dies_after_*` is SIGKILL. `corrupts` names the direction and the number of the
    byte that is changed. `bytes_per_s` bounds each direction. `damages_lf` is a fault of the real one: a message of
    nothing but a newline arrives as a carriage return. `session_id` is printed in place of the right one.
    """

    start: Literal["ready", "never_ready", "exits", "port_taken"] = "ready"
    says: str = ""
    noise: str = ""
    splits_port_line: bool = False
    session_id: str | None = None
    has_waiting_line: bool = True
    ignores_sigint: bool = False
    dies_after_s: float | None = None
    dies_after_bytes: int | None = None
    ends_after_bytes: int | None = None
    hangs_after_bytes: int | None = None
    bytes_per_s: float | None = None
    corrupts: tuple[Literal["up", "down"], int] | None = None
    damages_lf: bool = False


class StandIn:
    """The stand-in as it lies in a folder: what its next starts do, and what its starts so far have told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / NAME
        self._control = _control_folder(self.path)
        self._ordered = 0

    @classmethod
    def installed(cls, folder: Path, *, version: str = VERSION) -> StandIn:
        """Put it into `folder`, which belongs on PATH. `version` is all that `--version` prints."""
        made = cls(folder)
        (made._control / "orders").mkdir(parents=True, exist_ok=True)
        source = Path(__file__).read_text(encoding="utf-8")
        made.path.write_text(f"#!{sys.executable} -IS\n{source}", encoding="utf-8")
        made.path.chmod(0o755)
        made.set_version(version)
        return made

    def set_version(self, version: str) -> None:
        """What `--version` prints from now on."""
        (self._control / "version").write_text(version)

    def fail_next(self, *starts: PluginFaults) -> None:
        """The next starts do this, one each; those after them are as `fail_always` says."""
        for faults in starts:
            self._ordered += 1
            _replace(self._control / "orders" / f"{self._ordered:06d}.json", json.dumps(asdict(faults)))

    def fail_always(self, faults: PluginFaults) -> None:
        """Every start without an order of its own does this."""
        _replace(self._control / "always.json", json.dumps(asdict(faults)))

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """What the starts have told, oldest first: `event`, `pid`, `at_s` (monotonic), and more. See `_Program`."""
        journal = self._control / "journal.jsonl"
        lines = journal.read_text().splitlines() if journal.exists() else []
        events = [json.loads(line) for line in lines]
        return [event for event in events if name in (None, event["event"])]

    def pids(self) -> list[int]:
        """Each start's process id, oldest first."""
        return [event["pid"] for event in self.events("started")]


def main(argv: list[str], environment: Mapping[str, str]) -> int:
    """Be the plugin. Returns the exit status."""
    control = _control_folder(Path(argv[0]).absolute())
    if argv[1:] == ["--version"]:
        print((control / "version").read_text())
        return 0
    if len(argv) < 2:
        print("\nThe Session Manager plugin was installed successfully.")
        return 0
    return _Program(control, argv, environment).run()


class _Program:
    """One start. Its events: `started` (with `argv`, `environment` as names, `tmpdir`, `tmpdir_mode`, `session_id`, and
    `spawned_s`, when the process was made, to 10 ms), `secret_in_argv`, `ready`, `accepted`, `refused` (nobody listens
    behind the stream), `lf_damaged`, `corrupted`, `hung`, `interrupted` (with `up` and `down`, the bytes that passed).
    """

    def __init__(self, control: Path, argv: list[str], environment: Mapping[str, str]) -> None:
        self._control = control
        self._argv = argv
        self._environment = environment
        self._faults = _claim_faults(control)
        self._counting = threading.Lock()
        # One message after the other, so a reader that is slow blocks all others of its direction, as in the real one.
        self._sending = {"up": threading.Lock(), "down": threading.Lock()}
        self._moved_bytes = 0
        self._hangs = threading.Event()
        self._way_bytes = {"up": 0, "down": 0}
        self._free_at = {"up": 0.0, "down": 0.0}
        self._target = ("127.0.0.1", 0)

    def run(self) -> int:
        faults = self._faults
        # Inherited dispositions do not count, as in the real one.
        stops = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP}
        for number in stops:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, stops)

        name = self._argv[1]
        tmpdir = Path(self._environment.get("TMPDIR", "/tmp"))
        response = self._read_response(name)
        self._note(
            "started",
            spawned_s=_spawned_s(),
            argv=self._argv[1:],
            environment=sorted(self._environment),
            tmpdir=str(tmpdir),
            tmpdir_mode=oct(tmpdir.stat().st_mode & 0o777),
            session_id=response.get("SessionId"),
        )
        token = str(response.get("TokenValue", ""))
        if not name.startswith(RESPONSE_VARIABLE) or (token and any(token in part for part in self._argv)):
            self._note("secret_in_argv")
            print("the response of StartSession stands in the arguments, where every user reads it", file=sys.stderr)
            return SECRET_IN_ARGV
        if len(self._argv) < 7 or "Target" not in json.loads(self._argv[5] or "{}"):
            print("panic: runtime error: invalid memory address or nil pointer dereference", file=sys.stderr)
            return 2
        if not {"SessionId", "TokenValue", "StreamUrl"} <= response.keys():
            print("Cannot perform start session: unexpected end of JSON input", flush=True)
            return 0

        session_id = str(response["SessionId"])
        shown_id = session_id if faults.session_id is None else faults.session_id
        self._say(f"\nStarting session with SessionId: {shown_id}\n")
        host, _, port = str(response["StreamUrl"]).removeprefix("tcp://").partition(":")
        self._target = (host, int(port))
        if faults.start == "exits":
            self._say(faults.says)
            return 0
        if faults.start == "port_taken":
            self._say("Cannot perform start session: listen tcp 127.0.0.1:8080: bind: address already in use\n")
            return 0
        mux = tmpdir / f"{os.getpid()}_session_manager_plugin_mux.sock"
        try:
            inner = socket.socket(socket.AF_UNIX)
            inner.bind(str(mux))
        except OSError as error:
            self._say(f"Cannot perform start session: listen unix {mux}: {error}\n")
            return 0
        if faults.start == "ready":
            self._open(shown_id)
        while signal.sigwait(stops) and faults.ignores_sigint:
            pass
        # Here the real one tells its service that the session is over.
        self._note("interrupted", session_id=session_id, **self._way_bytes)
        mux.unlink(missing_ok=True)
        return 0

    def _read_response(self, name: str) -> dict[str, Any]:
        with suppress(ValueError):
            found = json.loads(self._environment.get(name, "") if name.startswith(RESPONSE_VARIABLE) else name)
            return found if isinstance(found, dict) else {}
        return {}

    def _open(self, session_id: str) -> None:
        faults = self._faults
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        port = listener.getsockname()[1]
        self._say(faults.noise)
        line = f"Port {port} opened for sessionId {session_id}.\n"
        if faults.splits_port_line:
            for piece in (line[:7], line[7:30], line[30:]):
                self._say(piece)
                # Long enough for a reader that does not join pieces to see them apart.
                time.sleep(0.02)
        else:
            self._say(line)
        if faults.has_waiting_line:
            self._say("Waiting for connections...\n")
        self._note("ready", port=port)
        self._reach(0)
        if faults.dies_after_s is not None:
            threading.Timer(faults.dies_after_s, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        threading.Thread(target=self._accept, args=(listener, session_id), daemon=True).start()

    def _accept(self, listener: socket.socket, session_id: str) -> None:
        is_first = True
        while True:
            client, _ = listener.accept()
            self._note("accepted")
            if is_first:
                self._say(f"\nConnection accepted for session [{session_id}]\n")
            is_first = False
            if self._hangs.is_set():
                # Kept open by the thread that waits with it.
                threading.Thread(target=self._hold, args=(client,), daemon=True).start()
                continue
            try:
                target = socket.create_connection(self._target, timeout=5)
            except OSError:
                self._note("refused")
                self._say("Connection to destination port failed, check SSM Agent logs.\n")
                client.close()
                continue
            target.settimeout(None)
            for way, source, sink in (("up", client, target), ("down", target, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pump, args=(way, source, sink), daemon=True).start()

    def _pump(self, way: Literal["up", "down"], source: socket.socket, sink: socket.socket) -> None:
        head_bytes = 2 * FRAME_HEAD_BYTES
        with suppress(OSError):
            while chunk := source.recv(COPY_BYTES if self._faults.bytes_per_s is None else MESSAGE_BYTES):
                if self._hangs.is_set():
                    self._hold(source)
                if way == "up":
                    chunk = self._damage_lf(chunk, head_bytes)
                    head_bytes = FRAME_HEAD_BYTES
                self._pace(way, len(chunk))
                with self._sending[way]:
                    with self._counting:
                        chunk, is_last = self._account(way, chunk)
                    sink.sendall(chunk)
                    if is_last:
                        self._reach(self._moved_bytes)
        # There is no half-close: the end of one direction ends the connection.
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _account(self, way: Literal["up", "down"], chunk: bytes) -> tuple[bytes, bool]:
        """The bytes that may still pass, changed where they are to be, and whether a fault is due behind them."""
        faults = self._faults
        marks = [faults.dies_after_bytes, faults.ends_after_bytes, faults.hangs_after_bytes]
        left = min((mark - self._moved_bytes for mark in marks if mark is not None), default=len(chunk) + 1)
        is_last = left <= len(chunk)
        chunk = chunk[: max(left, 0)] if is_last else chunk
        if faults.corrupts is not None and faults.corrupts[0] == way:
            at = faults.corrupts[1] - self._way_bytes[way]
            if 0 <= at < len(chunk):
                self._note("corrupted", way=way)
                chunk = chunk[:at] + bytes([chunk[at] ^ 0x01]) + chunk[at + 1 :]
        self._moved_bytes += len(chunk)
        self._way_bytes[way] += len(chunk)
        return chunk, is_last

    def _reach(self, moved_bytes: int) -> None:
        faults = self._faults
        if faults.dies_after_bytes is not None and moved_bytes >= faults.dies_after_bytes:
            os.kill(os.getpid(), signal.SIGKILL)
        if faults.ends_after_bytes is not None and moved_bytes >= faults.ends_after_bytes:
            self._say(faults.says)
            os._exit(0)
        if faults.hangs_after_bytes is not None and moved_bytes >= faults.hangs_after_bytes:
            self._note("hung")
            self._hangs.set()

    def _damage_lf(self, chunk: bytes, head_bytes: int) -> bytes:
        if not self._faults.damages_lf or not chunk.endswith(b"\n"):
            return chunk
        if (head_bytes + len(chunk)) % MESSAGE_BYTES != 1:
            return chunk
        self._note("lf_damaged", bytes=len(chunk))
        return chunk[:-1] + b"\r"

    def _pace(self, way: str, size_bytes: int) -> None:
        if self._faults.bytes_per_s is None:
            return
        with self._counting:
            now = time.monotonic()
            at = max(now, self._free_at[way])
            self._free_at[way] = at + size_bytes / self._faults.bytes_per_s
        time.sleep(max(0.0, at - now))

    @staticmethod
    def _hold(connection: socket.socket) -> None:
        """Keep it open and never answer."""
        while connection.fileno() >= 0:
            threading.Event().wait()

    def _say(self, text: str) -> None:
        if text:
            os.write(1, text.encode())

    def _note(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "pid": os.getpid(), "at_s": time.monotonic(), **facts}) + "\n"
        # One write of a short line to a file opened for appending is never torn by another process.
        with (self._control / "journal.jsonl").open("a") as journal:
            journal.write(line)


def _spawned_s() -> float:
    """When this process was made; its interpreter's start is not its parent's time."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


def _claim_faults(control: Path) -> PluginFaults:
    """The oldest order that no other start has taken, or what holds always."""
    for order in sorted((control / "orders").glob("*.json")):
        mine = order.with_suffix(f".taken-{os.getpid()}")
        with suppress(FileNotFoundError):
            order.rename(mine)
            return _read_faults(mine)
    always = control / "always.json"
    return _read_faults(always) if always.exists() else PluginFaults()


def _read_faults(path: Path) -> PluginFaults:
    found = json.loads(path.read_text())
    if found["corrupts"] is not None:
        found["corrupts"] = tuple(found["corrupts"])
    return PluginFaults(**found)


def _control_folder(program: Path) -> Path:
    return program.parent / f"{NAME}.d"


def _replace(path: Path, content: str) -> None:
    scratch = path.with_suffix(".scratch")
    scratch.write_text(content)
    scratch.replace(path)


if __name__ == "__main__":
    status = main(sys.argv, os.environ)
    sys.stdout.flush()
    # Threads that wait for ever must not keep a program that is over.
    os._exit(status)
