"""One suite that every driver passes. It is the `Driver` protocol's real documentation."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from broker.drivers import Driver
from broker.drivers.paper import PaperDriver
from broker.refusal import Refusal
from contract.actions import Click, Drag, Finish, Keypress, Move, Scroll, TypeText, Wait
from contract.broker_api import ErrorCode, Verdict

FactsOf = Callable[[Path], tuple[Counter[str], list[Any]]]

CIRCLE = TypeText(text="circle 60,40 22\n")
DONE = Finish(status="done", summary="")
# One of each kind that draws nothing: the circle command after it must still work.
HARMLESS = (
    Move(x=300, y=300),
    Scroll(x=700, y=500, dx=0, dy=2, modifiers=[]),
    Scroll(x=700, y=500, dx=0, dy=-2, modifiers=["shift"]),
    Click(x=900, y=450, button="right", clicks=1, modifiers=["ctrl"]),
    Keypress(keys=["esc"]),
    Drag(path=[[600, 300], [640, 300], [640, 340]], button="middle", modifiers=[]),
    Keypress(keys=["esc"]),
    Wait(seconds=0),
    Keypress(keys=["ctrl", "m"]),
)


@pytest.fixture(params=["paper", pytest.param("librecad", marks=pytest.mark.desktop)])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Driver]]:
    """Makes drivers of one kind, and closes them."""
    if request.param == "librecad":
        yield request.getfixturevalue("build_librecad")
        return
    made: list[Driver] = []

    def build_paper() -> Driver:
        state_dir = tmp_path / f"paper-{len(made)}"
        state_dir.mkdir()
        made.append(PaperDriver(state_dir))
        return made[-1]

    yield build_paper
    for driver in made:
        driver.close()


@pytest.fixture
def driver(build: Callable[[], Driver], seed: bytes) -> Driver:
    """A driver that stands on an empty drawing."""
    made = build()
    made.prepare()
    made.reset(seed)
    return made


def circles(facts: tuple[Counter[str], list[Any]]) -> int:
    """How many circles of radius 22 a drawing has."""
    return sum(count for entity, count in facts[0].items() if "CIRCLE" in entity and "radius=22.0" in entity)


def test_the_first_frame_is_always_the_same(build: Callable[[], Driver], seed: bytes) -> None:
    """Every rollout of a task must begin at the same picture: after a reset, and on another host."""
    first, second = build(), build()
    frames = [first.reset(seed)]
    first.act([CIRCLE, Move(x=10, y=900)])
    frames += [first.reset(seed), second.reset(seed)]

    assert {frames[0].sha256} == {frame.sha256 for frame in frames}
    assert {Verdict.OK} == {frame.verdict for frame in frames}


def test_a_frame_is_a_whole_png_of_the_screen(driver: Driver) -> None:
    """Its checksum is what the client checks after the tunnel."""
    frame = driver.act([CIRCLE]).frame

    assert hashlib.sha256(frame.png).hexdigest() == frame.sha256
    assert (1920, 1080) == Image.open(io.BytesIO(frame.png)).size == (frame.width_px, frame.height_px)


def test_drawing_shows_and_is_saved(driver: Driver, facts_of: FactsOf) -> None:
    """The command line has the focus after the reset: not even the first letter is lost."""
    before = driver.act([Wait(seconds=0)]).frame
    after = driver.act([CIRCLE]).frame
    path = driver.save()

    assert before.sha256 != after.sha256
    assert circles(facts_of(path)) == 1
    assert path.name == driver.artifact_name


def test_saving_twice_changes_nothing(driver: Driver, facts_of: FactsOf) -> None:
    """A lost answer makes the controller ask again; the model may also have saved by itself."""
    driver.act([CIRCLE])
    once = facts_of(driver.save())
    twice = facts_of(driver.save())

    assert once == twice
    assert circles(twice) == 1


def test_an_untouched_drawing_keeps_its_bytes(driver: Driver, seed: bytes) -> None:
    """Evaluation tells a model that did nothing by the checksum of the start drawing."""
    driver.act([Move(x=5, y=5), DONE])

    assert seed == driver.save().read_bytes()


def test_a_reset_forgets_what_was_drawn(driver: Driver, seed: bytes) -> None:
    """The next task starts clean, unsaved changes and all."""
    driver.act([CIRCLE])
    driver.save()
    driver.reset(seed)

    assert seed == driver.save().read_bytes()


def test_every_kind_of_action_is_performed(driver: Driver, facts_of: FactsOf) -> None:
    """A finish is no action of the desktop and is not counted."""
    acted = driver.act([*HARMLESS, CIRCLE, DONE])

    assert len(HARMLESS) + 1 == acted.performed
    assert circles(facts_of(driver.save())) == 1


def test_typing_what_no_keyboard_has_is_no_error(driver: Driver) -> None:
    """Models type diameter signs, and more."""
    acted = driver.act([TypeText(text="Ø ± ° m² 中文 € Жя ⌀"), Keypress(keys=["ctrl", "ä"]), Keypress(keys=["+"])])

    assert acted.performed == 3


def test_nothing_works_before_the_reset(build: Callable[[], Driver]) -> None:
    """There is no drawing yet."""
    made = build()
    with pytest.raises(Refusal) as acting:
        made.act([CIRCLE])
    with pytest.raises(Refusal) as saving:
        made.save()

    assert {ErrorCode.NOT_RESET} == {acting.value.code, saving.value.code}
    assert made.state() == "stopped"


def test_abort_ends_a_long_wait(driver: Driver) -> None:
    """The owner is gone: the desktop must not live for the rest of a 30-second wait."""
    threading.Timer(0.2, driver.abort).start()
    with pytest.raises(Refusal):
        driver.act([Wait(seconds=30)])


def test_close_can_be_called_twice_and_leaves_the_drawing(driver: Driver, seed: bytes) -> None:
    """Clean-up runs in several places; the evaluator still needs the file."""
    path = driver.save()
    driver.close()
    driver.close()

    assert driver.state() == "stopped"
    assert seed == path.read_bytes()
