"""What the evaluator reports and draws: exact curves, resolved looks, flattened references, rules of invalidity."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ezdxf
import numpy as np
import pytest
from ezdxf.document import Drawing
from PIL import Image

from broker.evaluator import render as render_module
from broker.evaluator.export import Facts, export_metadata
from broker.evaluator.render import _Sheet, render_flats
from contract.metadata import Metadata
from contract.records import dump_pretty

DATA = Path(__file__).parent / "data"
WINDOW = (-10.0, -10.0, 110.0, 80.0)
SIZE_PX = (240, 180)


def saved(build: Callable[[Any], None], *, version: str = "R2007") -> bytes:
    """The bytes of a drawing whose model space `build` fills."""
    document = ezdxf.new(version, setup=["linetypes"])
    document.header["$INSUNITS"] = 4
    document.layers.add("RED", color=1, linetype="CENTER")
    build(document.modelspace())
    return written(document)


def written(document: Drawing) -> bytes:
    stream = io.StringIO()
    document.write(stream)
    return stream.getvalue().encode(document.output_encoding)


def facts(build: Callable[[Any], None]) -> Metadata:
    found = export_metadata(saved(build), None)
    assert "ok" == found.status, found.invalid
    return found


def only(build: Callable[[Any], None]) -> Any:
    (entity,) = facts(build).entities
    return entity


def rendered(content: bytes, offset: tuple[float, float] = (0.0, 0.0)) -> bytes:
    return render_flats(Facts.of(content).flats, window=WINDOW, size_px=SIZE_PX, offset=offset)


def test_a_look_is_resolved_through_its_layer() -> None:
    """Explicit and inherited properties are the same to whoever compares."""
    own = only(lambda msp: msp.add_line((0, 0), (1, 0), dxfattribs={"color": 1, "linetype": "CENTER"}))
    inherited = only(lambda msp: msp.add_line((0, 0), (1, 0), dxfattribs={"layer": "RED"}))

    assert ("#ff0000", "CENTER") == (own.rgb, own.linetype) == (inherited.rgb, inherited.linetype)


def test_a_mirrored_arc_runs_counter_clockwise_in_the_world() -> None:
    """A normal of -Z mirrors angles; the record is about +Z."""
    entity = only(lambda msp: msp.add_arc((10, 0), 5, 0, 90, dxfattribs={"extrusion": (0, 0, -1)}))

    assert "arc" == entity.kind
    assert (-10.0, 0.0, 0.0) == pytest.approx(entity.geom.center)
    assert (90.0, 180.0) == pytest.approx((entity.geom.start_deg, entity.geom.end_deg))


def test_a_tilted_circle_is_a_marked_polyline() -> None:
    """What is not exact says so."""
    found = facts(lambda msp: msp.add_circle((0, 0), 5, dxfattribs={"extrusion": (1, 0, 0)}))

    (entity,) = found.entities
    assert ("polyline", False) == (entity.kind, entity.geom.is_exact)  # type: ignore[union-attr]
    assert "flattened_curve" in {warning.code for warning in found.warnings}


def with_block(msp: Any, **attributes: Any) -> None:
    """A block of a circle on layer 0, a bulged polyline and a text, referenced once."""
    block = msp.doc.blocks.new("PART", base_point=(1, 2))
    block.add_circle((5, 5), 2)
    block.add_lwpolyline([(0, 0, 1.0), (4, 0, 0.0), (4, 4, 0.0)], format="xyb", close=True)
    block.add_text("A%%c1", height=2, dxfattribs={"rotation": 30}).set_placement((3, 3))
    msp.add_blockref("PART", (20, 30), dxfattribs={"layer": "RED"} | attributes)


def test_a_reference_is_its_content_in_place() -> None:
    """Base point, scale and rotation count; content on layer 0 takes the reference's layer."""
    found = facts(lambda msp: with_block(msp, rotation=90, xscale=2, yscale=2, zscale=2))

    circle = next(entity for entity in found.entities if entity.kind == "circle")
    assert (14.0, 38.0, 0.0) == pytest.approx(circle.geom.center)  # type: ignore[union-attr]
    assert 4.0 == pytest.approx(circle.geom.radius)  # type: ignore[union-attr]
    assert ("RED", "#ff0000") == (circle.layer, circle.rgb)
    text = next(entity for entity in found.entities if entity.kind == "text")
    assert ("A⌀1", 4.0, 120.0) == (
        text.geom.text,  # type: ignore[union-attr]
        pytest.approx(text.geom.height),  # type: ignore[union-attr]
        pytest.approx(text.geom.rotation_deg),  # type: ignore[union-attr]
    )
    assert ["PART"] == [insert.block for insert in found.inserts]


def test_an_uneven_scale_makes_exact_ellipses() -> None:
    """Also of the arcs of a polyline, which falls into its pieces."""
    found = facts(lambda msp: with_block(msp, xscale=3, yscale=1))

    kinds = sorted(entity.kind for entity in found.entities)
    assert ["ellipse", "ellipse", "line", "line", "text"] == kinds
    ratios = [entity.geom.ratio for entity in found.entities if entity.kind == "ellipse"]
    assert [1 / 3, 1 / 3] == pytest.approx(ratios)


def test_an_array_has_a_copy_in_every_cell() -> None:
    """The grid turns with the reference but is not scaled; ids tell the cell."""
    grid = {"row_count": 2, "column_count": 3, "row_spacing": 10, "column_spacing": 20, "xscale": 2, "yscale": 2}
    found = facts(lambda msp: with_block(msp, **grid))

    centers = sorted(e.geom.center[:2] for e in found.entities if e.kind == "circle")
    assert [(28 + 20 * c, 36 + 10 * r) for c in range(3) for r in range(2)] == [
        (pytest.approx(x), pytest.approx(y)) for x, y in centers
    ]
    assert any("#1,2/" in entity.id for entity in found.entities)


def test_a_block_that_contains_itself_is_a_warning() -> None:
    """It must not hang, nor hide the rest."""

    def build(msp: Any) -> None:
        with_block(msp)
        msp.doc.blocks.get("PART").add_blockref("PART", (1, 1))

    found = facts(build)

    assert 3 == len(found.entities)
    assert "block_cycle" in {warning.code for warning in found.warnings}


def test_what_is_off_or_frozen_is_reported_as_hidden() -> None:
    """Each reason by its name; the content of a hidden reference is hidden by it."""

    def build(msp: Any) -> None:
        msp.doc.layers.add("OFF").off()
        msp.doc.layers.add("COLD").freeze()
        msp.add_line((0, 0), (1, 0))
        msp.add_line((0, 0), (1, 0), dxfattribs={"layer": "OFF"})
        msp.add_line((0, 0), (1, 0), dxfattribs={"layer": "COLD"})
        msp.add_line((0, 0), (1, 0), dxfattribs={"invisible": 1})
        with_block(msp, layer="OFF")

    found = facts(build)

    reasons = [entity.hidden_by for entity in found.entities]
    assert [[], ["layer_off"], ["layer_frozen"], ["entity_flag"]] == reasons[:4]
    assert all("reference" in reason for reason in reasons[4:])
    assert (1, len(found.entities) - 1) == (found.counts.visible, found.counts.hidden)


def test_a_dimension_is_read_from_its_definition() -> None:
    """With or without the block that some program rendered for it."""

    def build(msp: Any) -> None:
        msp.add_linear_dim(base=(0, -10), p1=(0, 0), p2=(80, 0))
        msp.add_linear_dim(base=(0, -20), p1=(0, 0), p2=(40, 30)).render()

    found = facts(build)

    assert ["dimension", "dimension"] == [entity.kind for entity in found.entities]
    assert [80.0, 40.0] == [entity.geom.measurement for entity in found.entities]  # type: ignore[union-attr]
    assert ["80", "40"] == [entity.geom.text_shown for entity in found.entities]  # type: ignore[union-attr]


def test_a_hatch_has_the_area_between_its_loops() -> None:
    """Holes are taken out."""

    def build(msp: Any) -> None:
        hatch = msp.add_hatch()
        hatch.set_pattern_fill("ANSI31", scale=2)
        hatch.paths.add_polyline_path([(0, 0), (20, 0), (20, 10), (0, 10)], flags=1)
        edges = hatch.paths.add_edge_path(flags=16)
        edges.add_arc((10, 5), 3, 0, 360)

    entity = only(build)

    assert ("ANSI31", False, 2) == (entity.geom.pattern, entity.geom.is_solid, len(entity.geom.loops))
    assert 200 - math.pi * 9 == pytest.approx(entity.geom.area, rel=1e-3)


def test_a_closed_mesh_has_a_volume() -> None:
    """Faces are exact without a modeler."""
    from ezdxf.render.forms import cube

    entity = only(lambda msp: cube(center=False).scale_uniform(2).render_mesh(msp))

    assert ("mesh", True) == (entity.kind, entity.geom.is_closed)
    assert (8.0, 24.0, (1.0, 1.0, 1.0)) == (
        pytest.approx(entity.geom.volume),
        pytest.approx(entity.geom.area),
        pytest.approx(entity.geom.centroid),
    )


def test_nothing_is_dropped_without_a_word() -> None:
    """An entity that is not compared is counted and warned about."""

    def build(msp: Any) -> None:
        msp.add_line((0, 0), (1, 1))
        msp.add_ray((0, 0), (1, 0))

    found = facts(build)

    assert 1 == found.counts.other
    assert ["unsupported_entity"] == [w.code for w in found.warnings if w.entity_id]


def test_the_same_drawing_gives_the_same_facts() -> None:
    """Digests are taken of them."""
    content = saved(with_block)

    assert dump_pretty(export_metadata(content, None)) == dump_pretty(export_metadata(content, None))


def nothing(_msp: Any) -> None:
    """An empty drawing."""


def beyond(msp: Any) -> None:
    msp.add_line((0, 0), (1e13, 0))


def pictured(msp: Any) -> None:
    definition = msp.doc.add_image_def("nowhere/secret/picture.png", (100, 80))
    msp.add_image(definition, insert=(0, 0), size_in_units=(100, 80))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "missing_artifact"),
        (b"%PDF-1.7 not a drawing", "wrong_format"),
        (b"AC1032" + bytes(100), "unreadable"),
        (saved(with_block)[:20_000], "unreadable"),
        (saved(with_block).replace(b"ENTITIES", b"ENTITIEZ"), "unreadable"),
        (saved(beyond), "nonfinite_geometry"),
        (saved(with_block).replace(b" 10\n20.0", b" 10\ninf"), "nonfinite_geometry"),
        (saved(nothing), "empty_drawing"),
        (saved(pictured), "empty_drawing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_broken_drawing_has_its_code(content: bytes, code: str) -> None:
    """I18: invalid with its code, and never a failure of ours."""
    found = export_metadata(content, None)

    assert found.invalid is not None
    assert (code, []) == (found.invalid.code, found.entities)


def test_a_start_drawing_saved_again_is_untouched() -> None:
    """A program that saves writes other handles, times and digits; the content is the same."""
    start = (DATA / "seed-blank-mm.dxf").read_bytes()
    work = saved(with_block)
    again = written(ezdxf.read(io.StringIO(work.decode())))

    assert "untouched" == getattr(export_metadata(start, start).invalid, "code", None)
    assert "untouched" == getattr(export_metadata(saved(nothing), start).invalid, "code", None)
    assert "untouched" == getattr(export_metadata(again, work).invalid, "code", None)
    assert "ok" == export_metadata(work, start).status


def test_a_drawing_saved_by_librecad_is_read_whole() -> None:
    """Its harmless faults are no obstacle."""
    found = export_metadata((DATA / "task-b-flange-plate.dxf").read_bytes(), None)

    kinds = sorted(entity.kind for entity in found.entities)
    assert {"arc": 8, "circle": 8, "dimension": 2, "line": 10} == {kind: kinds.count(kind) for kind in set(kinds)}
    assert 0 == found.counts.other


def test_any_bytes_end_in_facts_or_in_a_code() -> None:
    """I19: damaged drawings never raise."""
    chance = random.Random(19)
    whole = saved(with_block)
    start = whole.index(b"ENTITIES")
    for _ in range(25):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 30)):
            damaged[chance.randrange(start, len(damaged))] = chance.randrange(32, 127)

        assert export_metadata(bytes(damaged), None).status in ("ok", "invalid")


def test_a_render_is_the_same_every_time_and_blind_to_pictures() -> None:
    """I12: no picture, no cover and no hidden entity reaches it, and no file is looked for."""

    def covered(msp: Any) -> None:
        with_block(msp)
        pictured(msp)
        msp.add_wipeout([(0, 0), (100, 80)])
        msp.add_line((0, 0), (100, 80), dxfattribs={"invisible": 1})

    plain = rendered(saved(with_block))

    assert plain == rendered(saved(with_block)) == rendered(saved(covered))


def test_a_render_is_grey_and_holds_nothing_but_pixels() -> None:
    """Chunks of metadata could tell who drew, or speak to a judge."""
    png = rendered(saved(with_block))

    with Image.open(io.BytesIO(png)) as image:
        assert ("L", SIZE_PX, {}) == (image.mode, image.size, image.info)
        assert (np.asarray(image) < 223).any()
    kinds = [
        png[i - 4 : i] for i in range(16, len(png)) if png[i - 4 : i] in (b"tEXt", b"zTXt", b"iTXt", b"pHYs", b"tIME")
    ]
    assert [] == kinds


def test_the_offset_moves_the_drawing_into_the_window() -> None:
    """Free placement is found first and rendered second."""
    there = saved(lambda msp: msp.add_circle((520, 330), 15))
    here = saved(lambda msp: msp.add_circle((20, 30), 15))

    assert rendered(here) == rendered(there, offset=(-500.0, -300.0))


def test_dashed_and_reversed_lines_look_like_plain_ones() -> None:
    """A dash pattern would begin at another end."""
    plain = saved(lambda msp: msp.add_line((0, 0), (90, 61)))
    dashed = saved(lambda msp: msp.add_line((90, 61), (0, 0), dxfattribs={"layer": "RED", "lineweight": 100}))

    assert rendered(plain) == rendered(dashed)


def test_hatches_texts_and_dimensions_leave_ink() -> None:
    """None of them depends on what another program has rendered."""

    def hatch(msp: Any) -> None:
        found = msp.add_hatch()
        found.set_pattern_fill("ANSI31", scale=1)
        found.paths.add_polyline_path([(0, 0), (60, 0), (60, 40), (0, 40)])

    drawings = [
        hatch,
        lambda msp: msp.add_text("PLATE", height=8).set_placement((10, 10)),
        lambda msp: msp.add_mtext("TWO\\PLINES", dxfattribs={"char_height": 6, "insert": (10, 40)}),
        lambda msp: msp.add_linear_dim(base=(0, 20), p1=(0, 0), p2=(80, 0)),
        lambda msp: msp.add_solid([(0, 0), (20, 0), (0, 20), (20, 20)]),
    ]
    ink = []
    for build in drawings:
        with Image.open(io.BytesIO(rendered(saved(build)))) as image:
            ink.append(int((np.asarray(image) < 223).sum()))

    assert all(count > 50 for count in ink), ink


def _dotted(families: int) -> Callable[[Any], None]:
    """A hatch of 100 x 70 with so many families of dots, tens of thousands in each."""

    def build(msp: Any) -> None:
        hatch = msp.add_hatch()
        dots = [[0, (0, 0.002 * k), (0, 1.21), [0.01, -0.19]] for k in range(families)]
        hatch.set_pattern_fill("DOTTED", definition=dots)
        hatch.paths.add_polyline_path([(0, 0), (100, 0), (100, 70), (0, 70)], is_closed=True)
        msp.add_line((0, 75), (100, 75))

    return build


def test_patterns_take_only_so_many_strokes_and_curves_are_shown_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would keep the renderer busy until it is killed is left out: a drawing must not make itself void."""
    laid: list[int] = []
    real = _Sheet._pieces

    def counted(sheet: _Sheet, start: Any, step: Any) -> None:
        laid.append(len(start))
        real(sheet, start, step)

    monkeypatch.setattr(_Sheet, "_pieces", counted)
    monkeypatch.setattr(render_module, "PATTERN_STROKES_MAX", 3_000)

    picture = np.asarray(Image.open(io.BytesIO(rendered(saved(_dotted(2))))))

    # The line is one piece.
    assert 3_001 == sum(laid)
    assert (picture < 223).any(axis=0).sum() > 100, "the line is there"


def test_curves_behind_so_many_chords_are_drawn_by_the_fewest(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are still there: fifty circles, and a polyline of as many half circles."""
    laid: list[int] = []
    real = _Sheet._pieces

    def counted(sheet: _Sheet, start: Any, step: Any) -> None:
        laid.append(len(start))
        real(sheet, start, step)

    def build(msp: Any) -> None:
        for k in range(50):
            msp.add_circle((k + 20, 40), 20)
        msp.add_lwpolyline([(k, 70 * (k % 2), 1.0) for k in range(50)], format="xyb")

    monkeypatch.setattr(_Sheet, "_pieces", counted)
    whole = rendered(saved(build))
    before, laid = laid, []
    monkeypatch.setattr(render_module, "CHORDS_MAX", 500)
    less = rendered(saved(build))

    assert sum(before) > 4_000
    assert sum(laid) < 1_300
    ink = [int((np.asarray(Image.open(io.BytesIO(png))) < 223).sum()) for png in (whole, less)]
    assert ink[1] > 0.5 * ink[0]


def test_areas_and_letters_take_only_so_many_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones are drawn, what follows the bound is not; without the bound the sheet would be dark."""

    def build(msp: Any) -> None:
        msp.add_line((0, 75), (100, 75))
        for k in range(40):
            msp.add_solid([(k * 2.5, 0), (k * 2.5 + 2.5, 0), (k * 2.5, 70), (k * 2.5 + 2.5, 70)])
            msp.add_text("WIDE", height=20).set_placement((k, 20))

    dark = [int((np.asarray(Image.open(io.BytesIO(rendered(saved(build))))) < 223).sum())]
    # About two of the forty strips.
    monkeypatch.setattr(render_module, "AREA_PX_MAX", dark[0] // 20)
    dark.append(int((np.asarray(Image.open(io.BytesIO(rendered(saved(build))))) < 223).sum()))

    assert 0 < dark[1] < dark[0] / 5


def test_a_pattern_that_has_only_gaps_shows_nothing_and_takes_no_time() -> None:
    """Its lines have nothing to draw, however many periods fit into them."""

    def build(msp: Any) -> None:
        hatch = msp.add_hatch()
        hatch.set_pattern_fill("GAPS", definition=[[0, (0, 0), (0, 1.5), [-0.002, -0.002]]])
        hatch.paths.add_polyline_path([(0, 0), (100, 0), (100, 70), (0, 70)], is_closed=True)

    assert 255 == np.asarray(Image.open(io.BytesIO(rendered(saved(build))))).min()
