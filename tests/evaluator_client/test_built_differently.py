"""From file to score: one picture however it was built, pictures that reach nothing, and bytes of any kind."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ezdxf
import pytest
from ezdxf.document import Drawing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.evaluator.export import Facts, export_metadata
from broker.evaluator.render import render_flats
from contract.errors import EvaluationError
from contract.gold import Entry, SelfCheck
from contract.metadata import Metadata
from evaluator_client.gold import GoldEntry
from evaluator_client.score import score_drawing

DATA = Path(__file__).parent / "data"
SEEDS = st.integers(0, 10_000)
# A few drawings in `make check`, many in `make test`.
QUICK = settings(max_examples=3, deadline=None, derandomize=True, database=None)
MANY = settings(max_examples=60, deadline=None)
SAME = 1.5e-6

Build = Callable[[Drawing, Any, random.Random], None]


def drawn(build: Build, seed: int) -> bytes:
    """A drawing of layers with looks of their own, whose model space `build` fills."""
    document = ezdxf.new("R2010", setup=["linetypes"])
    document.layers.add("RED", color=1, linetype="CENTER")
    document.layers.add("THIN", color=3)
    build(document, document.modelspace(), random.Random(seed))
    return written(document)


def written(document: Drawing) -> bytes:
    stream = io.StringIO()
    document.write(stream)
    return stream.getvalue().encode(document.output_encoding)


def curves(layout: Any, chance: random.Random, *, look: Any = None) -> None:
    """A dozen lines, circles, arcs and polylines."""
    for _ in range(12):
        attributes = dict(look if look is not None else {"layer": chance.choice(("RED", "THIN", "0"))})
        x, y = chance.uniform(0, 100), chance.uniform(0, 60)
        match chance.randrange(4):
            case 0:
                layout.add_line((x, y), (x + chance.uniform(5, 40), y + chance.uniform(5, 40)), dxfattribs=attributes)
            case 1:
                layout.add_circle((x, y), chance.uniform(2, 15), dxfattribs=attributes)
            case 2:
                start = chance.uniform(0, 360)
                layout.add_arc((x, y), chance.uniform(2, 15), start, start + 100, dxfattribs=attributes)
            case _:
                points = [(x + 10 * k, y + chance.uniform(0, 20), 0, 0, chance.uniform(-0.5, 0.5)) for k in range(4)]
                layout.add_lwpolyline(points, dxfattribs=attributes)


@cache
def as_gold(content: bytes) -> GoldEntry:
    facts = export_metadata(content, None)
    assert "ok" == facts.status, facts.invalid
    entry = Entry(
        task_id="made",
        profile="2d",
        placement="absolute",
        window=(-200.0, -200.0, 400.0, 250.0),
        size_px=(400, 300),
        tolerances=None,
        self_check=SelfCheck(deterministic=1.0, blank="invalid"),
    )
    return GoldEntry(entry, facts, b"", "0" * 64)


def scored(candidate: bytes, gold: bytes) -> Any:
    return score_drawing(candidate=export_metadata(candidate, None), render=None, gold=as_gold(gold)).score


def _references(block: str, chance: random.Random, layout: Any) -> None:
    """The block mirrored, turned by quarters, scaled and in rows and columns."""
    for k in range(2):
        size = chance.choice((1.0, 0.5))
        layout.add_blockref(
            block,
            (chance.uniform(-50, 50), chance.uniform(-50, 50) + 150 * k),
            dxfattribs={
                "layer": chance.choice(("RED", "THIN")),
                "rotation": 90.0 * chance.randrange(4),
                "xscale": size * chance.choice((1.0, -1.0)),
                "yscale": size * chance.choice((1.0, -1.0)),
                "column_count": chance.choice((1, 2)),
                "column_spacing": 170.0,
            },
        )


def in_blocks(document: Drawing, msp: Any, chance: random.Random) -> None:
    """A block of curves inside another block, referred to twice."""
    curves(document.blocks.new("INNER"), chance)
    outer = document.blocks.new("OUTER")
    outer.add_blockref("INNER", (chance.uniform(-9, 9), 3), dxfattribs={"rotation": 90.0 * chance.randrange(4)})
    curves(outer, chance)
    _references("OUTER", chance, msp)


def out_of_blocks(document: Drawing, msp: Any, chance: random.Random) -> None:
    """The same, taken apart by the drawing library."""
    in_blocks(document, msp, chance)
    while inserts := list(msp.query("INSERT")):
        for insert in inserts:
            layer = insert.dxf.layer
            for part in insert.multi_insert() if insert.mcount > 1 else [insert]:
                for entity in list(part.virtual_entities()):
                    # What lies on layer 0 of a block is seen on the layer of its reference.
                    if entity.dxf.layer == "0":
                        entity.dxf.layer = layer
                    msp.add_entity(entity)
            insert.destroy()
        msp.purge()


def i4_a_block_is_its_content(seed: int) -> None:
    whole, apart = drawn(in_blocks, seed), drawn(out_of_blocks, seed)

    assert 1.0 == scored(apart, whole).deterministic == scored(whole, apart).deterministic


def i4_a_squeezed_block_is_its_lines(seed: int) -> None:
    """Scales that differ by axis, with another reference turned inside: placed by hand here."""
    chance = random.Random(seed)
    lines = [[(chance.uniform(0, 90), chance.uniform(0, 60)) for _ in range(2)] for _ in range(12)]
    scales = chance.choice((0.5, -1.0, 2.0)), chance.choice((0.3, 1.0, -1.5))
    inner, outer = 90.0 * chance.randrange(4) + 30.0, chance.uniform(0, 360)

    def nested(document: Drawing, msp: Any, _: random.Random) -> None:
        block = document.blocks.new("INNER")
        for start, end in lines:
            block.add_line(start, end)
        document.blocks.new("OUTER").add_blockref("INNER", (5, 3), dxfattribs={"rotation": inner})
        how = {"xscale": scales[0], "yscale": scales[1], "rotation": outer}
        msp.add_blockref("OUTER", (10, 20), dxfattribs=how)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x, y = _turned(point, inner)
        x, y = _turned(((x + 5) * scales[0], (y + 3) * scales[1]), outer)
        return x + 10, y + 20

    def flat(_: Drawing, msp: Any, __: random.Random) -> None:
        for start, end in lines:
            msp.add_line(place(start), place(end))

    assert 1.0 == scored(drawn(flat, seed), drawn(nested, seed)).deterministic


def _turned(point: tuple[float, float], degrees: float) -> tuple[float, float]:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return point[0] * cos - point[1] * sin, point[0] * sin + point[1] * cos


def i4_an_explicit_look_is_the_layer_s(seed: int) -> None:
    inherited = drawn(lambda _, msp, chance: curves(msp, chance, look={"layer": "RED"}), seed)
    explicit = drawn(
        lambda _, msp, chance: curves(msp, chance, look={"layer": "RED", "color": 1, "linetype": "CENTER"}), seed
    )

    assert 1.0 == scored(explicit, inherited).deterministic


def i4_a_circle_is_its_arcs(seed: int) -> None:
    def circles(_: Drawing, msp: Any, chance: random.Random, *, whole: bool) -> None:
        for _ in range(12):
            center, radius = (chance.uniform(0, 100), chance.uniform(0, 60)), chance.uniform(2, 15)
            cuts = sorted(chance.uniform(0, 360) for _ in range(3))
            if whole:
                msp.add_circle(center, radius)
                continue
            for start, end in zip(cuts, [*cuts[1:], cuts[0]], strict=True):
                msp.add_arc(center, radius, start, end)

    whole, parts = (drawn(lambda *at, w=w: circles(*at, whole=w), seed) for w in (True, False))

    assert 1.0 == pytest.approx(scored(parts, whole).deterministic, abs=SAME)


def i12_a_picture_does_not_reach_the_render(seed: int) -> None:
    def pasted(document: Drawing, msp: Any, chance: random.Random) -> None:
        curves(msp, chance)
        picture = document.add_image_def("no/such/file.png", size_in_pixel=(640, 480))
        msp.add_image(picture, (0, 0), (100, 60))
        msp.add_wipeout([(10, 10), (90, 50)])

    plain = drawn(lambda _, msp, chance: curves(msp, chance), seed)
    renders = [
        render_flats(
            Facts.of(content).flats, window=(-50.0, -50.0, 200.0, 137.5), size_px=(400, 300), offset=(0.0, 0.0)
        )
        for content in (plain, drawn(pasted, seed))
    ]

    assert renders[0] == renders[1]
    assert 0.6 == scored(drawn(pasted, seed), plain).deterministic


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith(("i4_", "i12_"))]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@QUICK
@given(seed=SEEDS)
def test_an_invariant_holds(check: Callable[[int], None], seed: int) -> None:
    """On a few drawings, the same in each run."""
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@settings(MANY, max_examples=25)
@given(seed=SEEDS)
def test_an_invariant_holds_for_many_drawings(check: Callable[[int], None], seed: int) -> None:
    """On more of them; on others with `--hypothesis-profile=chance`."""
    check(seed)


def _damaged(seed: int) -> bytes:
    """A real drawing with bytes changed, lines lost or doubled, numbers made absurd, or its end cut off."""
    chance = random.Random(seed)
    content = (DATA / chance.choice(("plate.dxf", "plate__raster_plus.dxf"))).read_bytes()
    lines = content.split(b"\n")
    for _ in range(chance.choice((1, 1, 3, 30))):
        at = chance.randrange(len(lines))
        match chance.randrange(6):
            case 0:
                lines[at] = bytes(chance.randrange(256) for _ in range(chance.randrange(12)))
            case 1:
                lines[at] = chance.choice((b"nan", b"inf", b"-1e300", b"1e13", b"0", b"-1", b"99999999999999999999"))
            case 2:
                del lines[at : at + chance.choice((1, 2, 7))]
            case 3:
                lines[at:at] = lines[at : at + chance.choice((2, 4, 40))]
            case 4:
                lines[at] = lines[chance.randrange(len(lines))]
            case _:
                lines[at] += b"9"
    changed = b"\n".join(lines)
    return changed[: chance.randrange(len(changed))] if chance.random() < 0.1 else changed


def _ends_well(content: bytes) -> None:
    """Invalid, scored, or a named fault of ours; the numbers of a score are in their range."""
    facts: Metadata = export_metadata(content, None)
    try:
        found = score_drawing(candidate=facts, render=None, gold=_plate()).score
    except EvaluationError:
        # A fault of ours, by its name.
        return
    assert math.isfinite(found.deterministic)
    assert 0.0 <= found.deterministic <= 1.0
    assert found.valid == (found.invalid is None)
    if found.valid:
        window = _plate().window
        render_flats(Facts.of(content).flats, window=window, size_px=(64, 48), offset=found.offset)


@cache
def _plate() -> GoldEntry:
    return as_gold((DATA / "plate.dxf").read_bytes())


@QUICK
@given(content=st.binary(max_size=300))
def test_i19_any_bytes_end_well(content: bytes) -> None:
    """No exception escapes; the process around the evaluator bounds time and memory."""
    _ends_well(content)
    _ends_well(b"0\nSECTION\n2\nENTITIES\n" + content + b"\n0\nENDSEC\n0\nEOF\n")


@QUICK
@given(seed=SEEDS)
def test_i19_a_damaged_drawing_ends_well(seed: int) -> None:
    """Where most of it is right, so that damage gets far."""
    _ends_well(_damaged(seed))


@pytest.mark.slow
@settings(MANY, max_examples=100)
@given(content=st.binary(max_size=2_000))
def test_i19_many_bytes_end_well(content: bytes) -> None:
    """The same, more often."""
    _ends_well(content)
    _ends_well(b"AC1032" + content)
    _ends_well(b"AutoCAD Binary DXF\r\n\x1a\x00" + content)
    _ends_well(b"0\nSECTION\n2\nENTITIES\n" + content + b"\n0\nENDSEC\n0\nEOF\n")


@pytest.mark.slow
@MANY
# An entity whose type became a number that nobody can ask for its layer.
@example(seed=4370)
@given(seed=st.integers(0, 10_000_000))
def test_i19_many_damaged_drawings_end_well(seed: int) -> None:
    """The same, more often."""
    _ends_well(_damaged(seed))
