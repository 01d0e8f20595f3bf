"""The real desktop: the five traps, input, every verdict, every death."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from Xlib import X

from broker.desktop.desktop import Desktop
from broker.desktop.eyes import Settled
from broker.desktop.isolation import available
from broker.desktop.processes import read_line, spawn
from broker.desktop.xlink import XLink
from broker.drivers.librecad import RESTARTS_MAX, LibreCadDriver
from broker.drivers.librecad_home import seed_home
from broker.refusal import Refusal
from contract.actions import Click, Drag, Keypress, Move, TypeText, Wait
from contract.broker_api import ErrorCode, Verdict
from tests.waiting import until

pytestmark = pytest.mark.desktop


ENV = {"PATH": os.environ["PATH"]}
Build = Callable[..., LibreCadDriver]
PidOf = Callable[[LibreCadDriver, str], int]
FactsOf = Callable[[Path], tuple[Counter[str], list[Any]]]


def desktop_of(driver: LibreCadDriver) -> Desktop:
    """The desktop below a driver, to do to it what no caller could."""
    assert driver._desktop is not None
    return driver._desktop


def code_of(deed: Callable[[], Any]) -> ErrorCode:
    """With which code it is refused."""
    with pytest.raises(Refusal) as caught:
        deed()
    return caught.value.code


# -- the five traps -----------------------------------------------------------------------------------------------


def test_a_display_number_in_two_pieces_is_read_to_its_newline(tmp_path: Path) -> None:
    """The X server writes the number and the newline apart, and dies when the pipe closes in between."""
    reader, writer = os.pipe()
    process = spawn("sleep", ["sleep", "30"], env=ENV, cwd=tmp_path)
    os.write(writer, b"1")
    threading.Timer(0.1, os.write, (writer, b"7\n")).start()
    line = read_line(reader, until=time.monotonic() + 5, process=process)
    process.kill()
    process.wait()
    nothing = read_line(reader, until=time.monotonic() + 5, process=process)
    process.close()

    assert (b"17\n", None) == (line, nothing)
    os.close(reader)
    os.close(writer)


def test_desktops_that_start_at_once_get_displays_of_their_own(tmp_path: Path) -> None:
    """Without the abstract socket they would all be :0, and the last one would own the file."""

    def start(index: int) -> Desktop:
        folder = tmp_path / str(index)
        folder.mkdir()
        made = Desktop(folder, report=available(), base_env=ENV)
        made.start()
        return made

    # The threads must outlive the desktops: the kernel kills those with the thread that started them.
    with ThreadPoolExecutor(4) as threads:
        desktops = list(threads.map(start, range(4)))
        displays = {made._server.display for made in desktops if made._server}
        for made in desktops:
            made.close()

    assert len(displays) == 4


@pytest.mark.parametrize("name", ["task-a-rect-circle", "task-b-flange-plate"])
def test_a_proven_script_gives_its_drawing(build_librecad: Build, facts_of: FactsOf, script: Any, name: str) -> None:
    """Typed commands, dialogs, combo boxes, and fillets picked by mouse."""
    seed, actions, expected = script(name)
    driver = build_librecad()
    driver.reset(seed)
    driver.act(actions)

    assert facts_of(expected) == facts_of(driver.save())


def test_the_floor_plan_is_the_same_drawing_every_time(build_librecad: Build, facts_of: FactsOf, script: Any) -> None:
    """Clicks into dialogs followed by keys: without the barrier a quarter of these were silently wrong."""
    seed, actions, expected = script("task-c-floor-plan")

    def play(_: int) -> Any:
        driver = build_librecad()
        driver.reset(seed)
        driver.act(actions)
        facts = facts_of(driver.save())
        driver.close()
        return facts

    # More desktops than cores: the fault showed under load.
    with ThreadPoolExecutor(4) as threads:
        drawings = list(threads.map(play, range(4)))

    assert [facts_of(expected)] * 4 == drawings


def test_a_late_window_manager_leaves_the_first_frame_as_it_is(
    build_librecad: Build, seed: bytes, pid_of: PidOf
) -> None:
    """A drawing that is loaded before its window is maximised, as on a cold machine, lies where it always does."""
    driver = build_librecad()
    usual = driver.reset(seed)
    desktop_of(driver).end_app()
    manager = pid_of(driver, "openbox")
    os.kill(manager, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (manager, signal.SIGCONT)).start()

    assert usual.sha256 == driver.reset(seed).sha256


def test_the_settings_hold_no_boolean_word(tmp_path: Path) -> None:
    """LibreCAD reads `true` as the number 0."""
    seed_home(tmp_path)
    settings = (tmp_path / ".config/LibreCAD/LibreCAD.conf").read_text()

    assert "true" not in settings.lower()
    assert "EvaluateCommandOnSpace=1" in settings


def test_no_cursor_blinks(build_librecad: Build, seed: bytes) -> None:
    """A frame would depend on the moment at which it is taken. A blinking cursor changes twice a second."""
    driver = build_librecad()
    driver.reset(seed)
    driver.act([TypeText(text="line")])
    digests = []
    for _ in range(12):
        desktop_of(driver).pause(0.15)
        digests.append(desktop_of(driver).eyes.digest())

    # The status bar forgets its message once.
    assert sum(one != other for one, other in itertools.pairwise(digests)) <= 1


# The fifth trap, letters lost after the start, is `test_drawing_shows_and_is_saved` of the conformance suite.

# -- input --------------------------------------------------------------------------------------------------------


def test_two_thousand_characters_arrive_exactly(build_librecad: Build, facts_of: FactsOf, seed: bytes) -> None:
    """A program that is slower than we type loses nothing."""
    driver = build_librecad()
    driver.reset(seed)
    ends = [((float(n), float(n % 97)), (float(n), float(n % 89 + 200))) for n in range(110)]
    text = "".join(f"line {x0:g},{y0:g} {x1:g},{y1:g} k\n" for (x0, y0), (x1, y1) in ends)
    driver.act([TypeText(text=text)])
    found = facts_of(driver.save())[0]

    assert len(text) > 2_000
    assert Counter(f"0 LINE start=({x0}, {y0}, 0.0) end=({x1}, {y1}, 0.0)" for (x0, y0), (x1, y1) in ends) == found


def test_signs_of_drawings_arrive_exactly(build_librecad: Build, seed: bytes) -> None:
    """Also those that are on no key, and with caps lock on."""
    import ezdxf
    from ezdxf.tools.text import plain_text

    text = 'Ø12 ±0.1 90° 22.4 m² "x" 5 < 6 > 4 &B;C Жя 中文 € abcXYZ'
    driver = build_librecad()
    driver.reset(seed)
    actions = [Keypress(keys=["capslock"]), TypeText(text=f"text\n{text}")]
    actions += [Keypress(keys=["capslock"]), Keypress(keys=["enter"]), Move(x=700, y=300), Move(x=706, y=304)]
    driver.act([*actions, Keypress(keys=["ctrl", "m"]), TypeText(text="10,20\nk\n")])
    found = [plain_text(e.dxf.text) for e in ezdxf.readfile(driver.save()).modelspace().query("TEXT")]

    assert [text] == found


def test_nothing_stays_down(build_librecad: Build, seed: bytes) -> None:
    """Neither after actions nor after an error in the middle of them."""
    driver = build_librecad()
    driver.reset(seed)
    driver.act(
        [
            Keypress(keys=["ctrl", "shift", "alt"]),
            Drag(path=[[500, 500], [600, 600]], button="left", modifiers=["shift", "ctrl"]),
        ]
    )
    hands = desktop_of(driver).hands
    display = desktop_of(driver).link.display
    hands._key(hands._keyboard.named("ctrl").keycode, is_down=True)
    hands._button(1, is_down=True)
    display.sync()
    held = any(display.query_keymap())
    driver.act([Wait(seconds=0)])

    assert held
    assert not any(display.query_keymap())
    assert not hands.root.query_pointer().mask & (X.Button1Mask | X.ShiftMask | X.ControlMask | X.Mod1Mask)


def test_two_clicks_at_one_spot_are_no_double_click(build_librecad: Build, seed: bytes) -> None:
    """Two actions are two picks: Qt must see them further apart than its double-click time of 400 ms."""
    driver = build_librecad()
    driver.reset(seed)
    click = Click(x=900, y=500, button="left", clicks=1, modifiers=[])
    began = time.monotonic()
    driver.act([click, click])

    assert time.monotonic() - began > 0.4


# -- verdicts -----------------------------------------------------------------------------------------------------


def test_a_dialog_is_modal_until_it_is_closed(build_librecad: Build, seed: bytes) -> None:
    """The model sees the dialog; whoever judges frames is told."""
    driver = build_librecad()
    driver.reset(seed)

    assert driver.act([Keypress(keys=["ctrl", "l"])]).frame.verdict is Verdict.MODAL
    assert driver.act([Keypress(keys=["esc"])]).frame.verdict is Verdict.OK


def test_a_desktop_without_a_window_is_black(desktop: Desktop) -> None:
    """The pointer alone is no picture."""
    assert desktop.look(Settled(is_quiet=True, took_s=0)).verdict is Verdict.BLACK


def test_a_frame_shows_the_pointer(desktop: Desktop) -> None:
    """A model that cannot see where it points cannot learn from where it clicked. Most ways of capture leave it out."""
    frames = []
    for x, y in ((300, 300), (900, 700), (300, 300)):
        desktop.hands.rest_pointer(x, y)
        desktop.eyes.wait_quiet(deadline=time.monotonic() + 5, doze=time.sleep)
        frames.append(desktop.look(Settled(is_quiet=True, took_s=0)).sha256)

    assert frames[0] == frames[2] != frames[1]


def test_a_screen_of_another_size_is_named(tmp_path: Path) -> None:
    """Coordinates would be wrong on it."""
    made = Desktop(tmp_path, report=available(), base_env=ENV, screen_px=(800, 600))
    made.start()
    frame = made.look(Settled(is_quiet=True, took_s=0))
    made.close()

    assert (Verdict.WRONG_SIZE, 800, 600) == (frame.verdict, frame.width_px, frame.height_px)


@pytest.mark.slow
def test_a_screen_that_never_rests_is_unsettled(build_librecad: Build, seed: bytes) -> None:
    """Waiting is bounded, and the verdict tells. On a busy machine the blinking may rest once, so we look again."""
    driver = build_librecad()
    driver.reset(seed)
    server = desktop_of(driver)._server
    assert server is not None
    stop = threading.Event()

    def blink() -> None:
        link = XLink(server.display, server.cookie_file, [server.process])
        window = link.root.create_window(0, 0, 50, 50, 0, 24, X.InputOutput, X.CopyFromParent, override_redirect=1)
        window.map()
        color = 0
        while not stop.wait(0.002):
            color += 0x010101
            window.change_attributes(background_pixel=color)
            window.clear_area()
            link.sync()
        link.close()

    thread = threading.Thread(target=blink)
    thread.start()
    try:
        until(lambda: driver.act([Move(x=800, y=800)]).frame.verdict is Verdict.UNSETTLED)
    finally:
        stop.set()
        thread.join()


# -- deaths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code", "state"),
    [
        ("librecad", ErrorCode.CAD_DIED, "cad_died"),
        ("Xvfb", ErrorCode.DISPLAY_DIED, "display_died"),
        ("openbox", ErrorCode.DISPLAY_DIED, "display_died"),
    ],
)
def test_a_killed_part_is_named_and_the_next_reset_heals(
    build_librecad: Build, seed: bytes, pid_of: PidOf, name: str, code: ErrorCode, state: str
) -> None:
    """Whether it dies between two calls or under the actions."""
    driver = build_librecad()
    driver.reset(seed)
    os.kill(pid_of(driver, name), signal.SIGKILL)
    between = code_of(lambda: driver.act([Wait(seconds=0)]))
    state_between = driver.state()
    driver.reset(seed)
    threading.Timer(0.2, os.kill, (pid_of(driver, name), signal.SIGKILL)).start()
    under = code_of(lambda: driver.act([TypeText(text="line 1,1 2,2 k\n")] * 40))

    assert (code, code, state, state) == (between, under, state_between, driver.state())
    assert driver.reset(seed).verdict is Verdict.OK


@pytest.mark.parametrize(("name", "state"), [("librecad", "cad_died"), ("Xvfb", "display_died")])
def test_a_death_is_told_at_once(build_librecad: Build, seed: bytes, pid_of: PidOf, name: str, state: str) -> None:
    """Nobody has to ask, and a model's long wait does not hide it."""
    driver = build_librecad()
    driver.reset(seed)
    told = threading.Event()
    driver.watch(told.set)
    waiting = threading.Timer(0.2, os.kill, (pid_of(driver, name), signal.SIGKILL))
    waiting.start()
    codes: list[ErrorCode] = []
    acting = threading.Thread(target=lambda: codes.append(code_of(lambda: driver.act([Wait(seconds=30)]))))
    acting.start()
    was_told = told.wait(20)
    acting.join(5)

    assert was_told
    assert [state] == [code.value for code in codes]
    assert state == driver.state()


def test_a_program_that_hangs_is_named(build_librecad: Build, seed: bytes, pid_of: PidOf) -> None:
    """It is alive, it answers nothing."""
    driver = build_librecad(hang_s=0.5)
    driver.reset(seed)
    os.kill(pid_of(driver, "librecad"), signal.SIGSTOP)

    assert code_of(lambda: driver.act([Keypress(keys=["esc"])])) is ErrorCode.CAD_HUNG
    assert driver.state() == "cad_hung"


@pytest.mark.parametrize("name", ["Xvfb", "openbox"])
def test_a_display_that_hangs_is_named(build_librecad: Build, seed: bytes, pid_of: PidOf, name: str) -> None:
    """Nobody waits for ever for what it does not say."""
    driver = build_librecad(hang_s=0.5)
    driver.reset(seed)
    os.kill(pid_of(driver, name), signal.SIGSTOP)

    assert code_of(lambda: driver.act([Keypress(keys=["esc"])])) is ErrorCode.DISPLAY_DIED
    assert driver.state() == "display_died"


def test_a_model_that_quits_the_program_is_shown_it_again(
    build_librecad: Build, facts_of: FactsOf, seed: bytes
) -> None:
    """What it had saved is there; but nobody is served for ever."""
    driver = build_librecad()
    driver.reset(seed)
    driver.act([TypeText(text="circle 60,40 22 k\n"), Keypress(keys=["ctrl", "s"])])
    acted = driver.act([Keypress(keys=["ctrl", "q"]), TypeText(text="circle 10,10 5 k\n")])
    drawn = facts_of(driver.save())[0]
    for _ in range(RESTARTS_MAX - 1):
        driver.act([Keypress(keys=["ctrl", "q"])])

    assert (2, Verdict.OK) == (acted.performed, acted.frame.verdict)
    assert 2 == sum(count for entity, count in drawn.items() if "CIRCLE" in entity)
    assert code_of(lambda: driver.act([Keypress(keys=["ctrl", "q"])])) is ErrorCode.CAD_DIED


@pytest.mark.parametrize("mess", ["dialog", "command", "new document", "menu"])
def test_save_finds_its_way_out_of(build_librecad: Build, facts_of: FactsOf, seed: bytes, mess: str) -> None:
    """A model may stop anywhere; what it has drawn counts."""
    driver = build_librecad()
    driver.reset(seed)
    driver.act([TypeText(text="circle 60,40 22 k\n")])
    keys = {
        "dialog": [Keypress(keys=["ctrl", "l"])],
        "command": [TypeText(text="line 5,5 6,6 ")],
        "new document": [Keypress(keys=["ctrl", "n"])],
        "menu": [Keypress(keys=["alt", "f"])],
    }
    driver.act(keys[mess])

    assert 1 == sum(count for entity, count in facts_of(driver.save())[0].items() if "CIRCLE" in entity)
