"""The walls around one desktop's CAD program, by the best means that this machine has.

* `bubblewrap`: its own view of the file system (system programs, its own home, one drawing folder, one X socket), no
  network, no other processes, no capabilities.
* `own_uid`: a user of its own for each desktop, no network where the kernel lets us; files that everyone may read stay
  visible.
* `none`: only its own home, cookie and process group.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

# Users without a name, one per desktop at once; above what Debian gives to people, below 16-bit maps' end.
UID_FIRST: Final = 30_000
UIDS_MAX: Final = 1_000
# A quarter of a second is plenty for /bin/true; a machine that needs longer is not asked twice.
PROBE_S_MAX: Final = 5.0
# LibreCAD maps 464 MB; a drawing that needs twice that is an accident or an attack on the siblings.
APP_MEMORY_BYTES_MAX: Final = 1_200_000_000
# A drawing of 64 MiB is too large already; an image exported by mistake must not fill the disk.
FILE_BYTES_MAX: Final = 1_000_000_000

INSIDE_HOME: Final = Path("/home/cad")
INSIDE_DRAWINGS: Final = INSIDE_HOME / "drawings"
INSIDE_COOKIE: Final = Path("/run/xauthority")

Preference = Literal["auto", "bubblewrap", "own_uid", "none"]


class IsolationKind(StrEnum):
    """How a desktop is walled off."""

    BUBBLEWRAP = "bubblewrap"
    OWN_UID = "own_uid"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """What desktops will be isolated by, and why, in one line for people. `has_network` is false when it is cut off."""

    kind: IsolationKind
    reason: str
    has_network: bool


@functools.cache
def available() -> IsolationReport:
    """The best isolation of this machine, found by trying it once. Starts a few short programs, changes nothing."""
    bubblewrap = _bubblewrap_problem()
    if bubblewrap is None:
        return IsolationReport(
            IsolationKind.BUBBLEWRAP, "each CAD program sees its own files and display only, no network", False
        )
    if os.geteuid() != 0:
        reason = f"no walls around the CAD program: {bubblewrap}, and only root can give each desktop its own user"
        return IsolationReport(IsolationKind.NONE, reason, True)
    own_uid = _problem_of(["setpriv", *_setpriv_options(UID_FIRST), "--", "true"])
    if own_uid is not None:
        return IsolationReport(IsolationKind.NONE, f"no walls around the CAD program: {bubblewrap}; {own_uid}", True)
    has_network = _problem_of(["unshare", "--net", "--", "true"]) is not None
    network = "the network stays reachable" if has_network else "no network"
    reason = f"a user of its own for each desktop, {network}; files that everyone may read stay visible ({bubblewrap})"
    return IsolationReport(IsolationKind.OWN_UID, reason, has_network)


def chosen(preference: Preference) -> IsolationReport:
    """What `preference` gives: `auto` is the best there is; another kind is taken as told."""
    if preference == "auto":
        return available()
    kind = IsolationKind(preference)
    has_network = kind is IsolationKind.NONE
    if kind is IsolationKind.OWN_UID:
        has_network = _problem_of(["unshare", "--net", "--", "true"]) is not None
    return IsolationReport(kind, "chosen by the operator", has_network)


@dataclass(slots=True)
class Walls:
    """The walls of one desktop. `close` gives its user back."""

    report: IsolationReport
    uid: int | None = None
    _uid_lock: int = field(default=-1, repr=False)

    @property
    def setpriv_options(self) -> list[str]:
        """The user under which the desktop's processes run, as options of setpriv; none when it is ours."""
        return [] if self.uid is None else _setpriv_options(self.uid)

    @property
    def app_prefix(self) -> list[str]:
        """What the CAD program is started through before its user changes."""
        # Only the CAD program: X servers in network namespaces of their own would all take display 0, because the
        # abstract socket that reserves the number is a network thing.
        cut_off = self.report.kind is IsolationKind.OWN_UID and not self.report.has_network
        return ["unshare", "--net", "--"] if cut_off else []

    def scratch_parent(self, state_dir: Path) -> Path:
        """Where the desktop's own folder belongs: another user cannot reach through our private state folder."""
        return state_dir if self.uid is None else Path(tempfile.gettempdir())

    def own(self, *paths: Path) -> None:
        """Give files and folders to the desktop's user."""
        if self.uid is not None:
            for path in paths:
                os.chown(path, self.uid, self.uid)

    def wrap_app(self, argv: Sequence[str], *, home: Path, drawings: Path, cookie: Path, x_socket: Path) -> list[str]:
        """The command line that starts the CAD program inside the walls."""
        limited = ["prlimit", f"--as={APP_MEMORY_BYTES_MAX}", f"--fsize={FILE_BYTES_MAX}", "--core=0", "--", *argv]
        if self.report.kind is not IsolationKind.BUBBLEWRAP:
            return limited
        view = ["--bind", str(home), str(INSIDE_HOME), "--bind", str(drawings), str(INSIDE_DRAWINGS)]
        view += ["--ro-bind", str(cookie), str(INSIDE_COOKIE), "--ro-bind", str(x_socket), str(x_socket)]
        return [*_bubblewrap(), *view, "--chdir", str(INSIDE_HOME), "--", *limited]

    def close(self) -> None:
        """Give the user id back. A second call does nothing."""
        if self._uid_lock >= 0:
            os.close(self._uid_lock)
            self._uid_lock = -1


def build_walls(report: IsolationReport) -> Walls:
    """Reserve what one desktop needs: for `own_uid`, a user that no other desktop on this machine has now."""
    if report.kind is not IsolationKind.OWN_UID:
        return Walls(report)
    locks = Path(tempfile.gettempdir()) / "autocad-bench-uids"
    locks.mkdir(mode=0o700, exist_ok=True)
    for uid in range(UID_FIRST, UID_FIRST + UIDS_MAX):
        # Held as long as this process lives, so a killed broker gives its user back too.
        lock = os.open(locks / str(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return Walls(report, uid=uid, _uid_lock=lock)
    raise AssertionError(f"{UIDS_MAX} desktops run at once on this machine")


def is_desktop_user(uid: int) -> bool:
    """True for our own user, and, when we are root, for those that we give to desktops."""
    return uid == os.getuid() or (os.geteuid() == 0 and UID_FIRST <= uid < UID_FIRST + UIDS_MAX)


def _setpriv_options(uid: int) -> list[str]:
    return [f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs", "--inh-caps=-all"]


def _bubblewrap() -> list[str]:
    argv = ["bwrap", "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    argv += ["--unshare-net", "--unshare-cgroup-try", "--cap-drop", "ALL"]
    argv += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        folder = Path("/") / name
        if folder.is_symlink():
            argv += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.is_dir():
            argv += ["--ro-bind", str(folder), str(folder)]
    for path in ("/etc/fonts", "/etc/ld.so.cache", "/etc/alternatives", "/var/cache/fontconfig"):
        argv += ["--ro-bind-try", path, path]
    for hidden in _hidden_folders():
        argv += ["--tmpfs", str(hidden)]
    return [*argv, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run", "--dir", "/home"]


def _hidden_folders() -> list[Path]:
    """Folders below /usr where people keep checkouts, gold and all; in containers that is usual."""
    system = Path("/usr")
    checkout = Path(__file__).resolve().parents[2]
    folders = [system / "src", system / "local/src", *([checkout] if checkout.is_relative_to(system) else [])]
    return [folder for folder in folders if folder.is_dir()]


def _bubblewrap_problem() -> str | None:
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    problem = _problem_of([*_bubblewrap(), "--", "true"])
    return None if problem is None else f"bubblewrap does not work here ({problem})"


def _problem_of(argv: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            argv,
            # Whoever tries this may hold keys, which are no business of any program that it starts.
            env={"PATH": os.pathsep.join(os.get_exec_path())},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S_MAX,
            check=False,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{argv[0]}: {error.__class__.__name__}"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"{argv[0]} ended with {done.returncode}"
