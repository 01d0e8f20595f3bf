"""The walls around a desktop, and that nothing of it is left."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from Xlib.display import Display
from Xlib.error import DisplayConnectionError

from broker.desktop.desktop import Desktop
from broker.desktop.isolation import IsolationKind, available, build_walls, chosen
from broker.desktop.xlink import XLink
from broker.desktop.xserver import SOCKET_DIR, remove_stale_sockets
from broker.drivers.librecad import LibreCadDriver
from broker.refusal import Refusal
from contract.actions import Keypress, TypeText
from contract.broker_api import ErrorCode, Verdict

pytestmark = pytest.mark.desktop

ROOT = Path(__file__).resolve().parents[2]
ENV = {"PATH": os.environ["PATH"]}
Build = Callable[..., LibreCadDriver]
PidOf = Callable[[LibreCadDriver, str], int]
FactsOf = Callable[[Path], tuple[Counter[str], list[Any]]]


def processes_of(state_dir: Path) -> dict[str, int]:
    """The living processes that were started on this state folder, by name; zombies are dead."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                environ = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z" and command and (str(state_dir).encode() in command + environ):
                found[Path(command.split(b"\0")[0].decode()).name] = int(entry.name)
    return found


def code_of(deed: Callable[[], Any]) -> ErrorCode:
    """With which code it is refused."""
    with pytest.raises(Refusal) as caught:
        deed()
    return caught.value.code


def test_without_the_cookie_nobody_gets_in(desktop: Desktop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor with the cookie of another desktop."""
    other_dir = tmp_path / "other"
    other_dir.mkdir()
    other = Desktop(other_dir, report=available(), base_env=ENV)
    other.start()
    assert desktop._server
    assert other._server
    display = desktop._server.display
    monkeypatch.setenv("XAUTHORITY", str(tmp_path / "none"))
    with pytest.raises(DisplayConnectionError):
        Display(f":{display}")

    assert code_of(lambda: XLink(display, other._server.cookie_file, [])) is ErrorCode.DISPLAY_DIED
    assert desktop._server.cookie_file.stat().st_mode & 0o77 == 0
    other.close()


def _inside(desktop: Desktop, command: str) -> str:
    """What a shell inside the CAD program's walls prints."""
    assert desktop._server
    argv = desktop._walls.wrap_app(
        ["sh", "-c", command],
        home=desktop.home,
        drawings=desktop.drawings,
        cookie=desktop._server.cookie_file,
        x_socket=desktop._server.socket_path,
    )
    done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False, env=ENV)
    return done.stdout


@pytest.mark.skipif(available().kind is not IsolationKind.BUBBLEWRAP, reason="bubblewrap does not work here")
def test_inside_the_walls_there_is_nothing_to_find(desktop: Desktop, tmp_path: Path) -> None:
    """No network, no other process, no gold, no config, no other desktop; only the drawing folder can be written."""
    assert desktop._server
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    secret = tmp_path / "gold.json"
    secret.write_text("secret")
    out = _inside(
        desktop,
        f"test -e {ROOT} && echo repo; test -e {secret} && echo gold; ls /tmp/.X11-unix; ls /home; "
        f"grep -c : /proc/net/dev; ls -d /proc/[0-9]* | wc -l; touch /usr/x 2>/dev/null && echo written; "
        f"touch /home/cad/drawings/attempt.dxf && echo drawn; "
        f"bash -c ': </dev/tcp/127.0.0.1/{port}' 2>/dev/null && echo network",
    )
    listener.close()
    socket_name, home, interfaces, processes, *rest = out.split()

    assert (desktop._server.socket_path.name, "cad", "1") == (socket_name, home, interfaces)
    assert int(processes) <= 6
    assert ["drawn"] == rest


@pytest.mark.skipif(available().kind is not IsolationKind.BUBBLEWRAP, reason="bubblewrap does not work here")
@pytest.mark.skipif(not Path("/usr/src").is_dir(), reason="there is nothing to hide")
def test_a_checkout_among_the_system_programs_is_hidden(desktop: Desktop) -> None:
    """Containers like to have it in /usr/src, gold and all; the program needs the rest of /usr."""
    assert "tmpfs /usr/src" in _inside(desktop, "cut -d ' ' -f 1,2 /proc/self/mounts").splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a desktop its own user")
def test_with_a_user_of_its_own_the_program_draws_and_reads_nothing_private(
    build_librecad: Build, facts_of: FactsOf, seed: bytes, pid_of: PidOf
) -> None:
    """The second-best walls, for machines without bubblewrap."""
    driver = build_librecad(isolation=chosen("own_uid"))
    driver.reset(seed)
    facts = Path(f"/proc/{pid_of(driver, 'librecad')}/status").read_text()
    uid = next(line.split()[1] for line in facts.splitlines() if line.startswith("Uid:"))
    driver.act([TypeText(text="circle 60,40 22 k\n")])
    saved = driver.save()
    other = build_walls(chosen("own_uid"))
    home_mode = driver._desktop.home.stat().st_mode & 0o77
    own_uid = driver._desktop._walls.uid

    assert (str(own_uid), 0) == (uid, home_mode)
    assert other.uid not in (None, own_uid, 0)
    assert 1 == sum(count for entity, count in facts_of(saved)[0].items() if "CIRCLE" in entity)
    other.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a desktop its own user")
def test_with_a_user_of_its_own_the_first_frame_and_what_is_left_are_as_ever(
    build_librecad: Build, seed: bytes, tmp_path: Path
) -> None:
    """No path of this machine is on the screen, and a drawing outlives its desktop."""
    drivers = [build_librecad(isolation=chosen("own_uid")) for _ in range(2)]
    frames = [driver.reset(seed).sha256 for driver in drivers]
    drivers[0].act([TypeText(text="circle 60,40 22 k\n"), Keypress(keys=["ctrl", "s"])])
    for driver in drivers:
        driver.close()
    drawn, empty = [(tmp_path / f"librecad-{n}" / "drawing" / "attempt.dxf").read_bytes() for n in range(2)]

    assert frames[0] == frames[1]
    assert seed == empty
    assert b"CIRCLE" in drawn


def test_without_walls_it_still_works(build_librecad: Build, seed: bytes) -> None:
    """The last resort, which preflight names."""
    driver = build_librecad(isolation=chosen("none"))

    assert driver.reset(seed).verdict is Verdict.OK


def test_close_leaves_no_process_no_file_and_no_socket(build_librecad: Build, seed: bytes, tmp_path: Path) -> None:
    """Whoever starts a thousand desktops in a night must not find a thousand leftovers."""
    screens = set(Path("/dev/shm").glob("autocad-bench-*"))
    driver = build_librecad()
    driver.reset(seed)
    server = driver._desktop._server
    assert server
    alive = processes_of(tmp_path)
    driver.close()

    assert {"Xvfb", "openbox", "bwrap"} <= set(alive) or available().kind is not IsolationKind.BUBBLEWRAP
    assert {} == processes_of(tmp_path)
    assert not server.socket_path.exists()
    assert ["drawing"] == [path.name for path in (tmp_path / "librecad-0").iterdir()]
    assert set(Path("/dev/shm").glob("autocad-bench-*")) <= screens


def test_a_stale_socket_of_a_dead_server_is_removed_and_a_living_one_is_not(desktop: Desktop) -> None:
    """Killed servers leave their sockets; a thousand of them would use the numbers up."""
    assert desktop._server
    stale = SOCKET_DIR / "X7321"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(stale))
    hour_ago = time.time() - 3600
    os.utime(stale, (hour_ago, hour_ago))
    os.utime(desktop._server.socket_path, (hour_ago, hour_ago))
    remove_stale_sockets()

    assert not stale.exists()
    assert desktop._server.socket_path.exists()
