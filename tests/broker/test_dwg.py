"""DWG drawings are read to be looked at: as much as can be read, what cannot be is listed, and never a pinned score.

The drawings are written by the library that reads them, in its one format (AutoCAD 2000): no drawing of a later version
can be made here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ezdwg
import pytest
from ezdxf.filemanagement import new, readfile

from broker.evaluator.dwg_entities import placeholder
from broker.evaluator.export import Facts
from broker.evaluator.settings import identity, inspector
from contract.errors import EvaluationError
from contract.metadata import Metadata
from contract.records import dump_pretty
from evaluator_client.gold import load_entry
from evaluator_client.gold_writer import draft_entry, write_entry
from evaluator_client.score import score_drawing
from evaluator_client.windows import RENDER_SIZE_PX, window_of

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "configs" / "gold" / "sources"
SUITE = sorted(path.stem for path in SOURCES.glob("*.dxf"))


def test_the_golds_of_the_suite_are_worth_one_as_dwg_too(tmp_path: Path) -> None:
    """Geometry, texts, dimensions, layers, colours and linetypes all come through, by the score itself."""
    worth = {name: worth_of_dwg(SOURCES / f"{name}.dxf", tmp_path / f"{name}.dwg") for name in SUITE}

    assert dict.fromkeys(SUITE, 1.0) == worth


def test_blocks_sheets_and_hidden_layers_come_through(tmp_path: Path) -> None:
    """Block content is flattened under the handles of the file, and a viewport says its scale."""
    drawing = ezdwg.new()
    drawing.layers["AXES"] = {"color_index": 3, "off": True}
    drawing.layers["STEEL"] = {"color_index": 1}
    hole = drawing.blocks.new("HOLE", base_point=(1, 0, 0))
    hole.add_circle((1, 0), radius=2, layer="STEEL")
    hole.add_line((-3, 0), (3, 0), layer="AXES")
    reference = drawing.modelspace().add_blockref(
        "HOLE", insert=(30, 40), rotation=90, xscale=2.0, yscale=2.0, zscale=2.0
    )
    drawing.modelspace().add_attrib(reference, "ID", "P-7", insert=(30, 50), height=3)
    drawing.set_paper(420, 297)
    drawing.paperspace().add_viewport((210, 148), 400, 200, view_center=(30, 40), view_height=2000)
    metadata = inspected(saved(drawing, tmp_path / "blocks.dwg"))
    by_kind = {entity.kind: entity for entity in metadata.entities}

    assert {"line", "circle", "text"} == set(by_kind)
    assert ("STEEL", "#ff0000", True) == (by_kind["circle"].layer, by_kind["circle"].rgb, by_kind["circle"].is_visible)
    assert ((30.0, 40.0, 0.0), 4.0) == rounded_circle(by_kind["circle"].geom)
    assert ["layer_off"] == by_kind["line"].hidden_by
    assert [("HOLE", {"ID": "P-7"})] == [(insert.block, insert.attributes) for insert in metadata.inserts]
    assert [[], [0.1]] == [[viewport.scale for viewport in layout.viewports] for layout in metadata.layouts]


def test_every_kind_that_can_be_written_is_read(tmp_path: Path) -> None:
    """One of each; the numbers are those that it was made of."""
    metadata = inspected(saved(one_of_each(), tmp_path / "kinds.dwg"))
    found = {entity.dxf_type: entity.geom for entity in metadata.entities}
    dimensions = [entity.geom for entity in metadata.entities if entity.kind == "dimension"]

    assert [] == [warning for warning in metadata.warnings if warning.code != "dwg_inspected"]
    assert "A\nB" == found["MTEXT"].text
    assert (200.0, "ANSI31", 10.0) == (found["HATCH"].area, found["HATCH"].pattern, found["HATCH"].scale)
    assert 1.0 == found["SOLID"].area
    assert [(0.0, 80.0, 0.0), (10.0, 90.0, 0.0), (20.0, 80.0, 0.0), (30.0, 90.0, 0.0)] == found["SPLINE"].control_points
    assert ((8.0, 0.0, 0.0), 0.5) == (found["ELLIPSE"].major_axis, found["ELLIPSE"].ratio)
    assert [0.0, 0.5, 0.0, 0.0] == found["LWPOLYLINE"].bulges
    assert 4 == found["3DFACE"].vertex_count
    assert {("linear", 100.0, "100"), ("radius", 10.0, "R10")} == {
        (dimension.dim_kind, round(dimension.measurement, 9), dimension.text_shown) for dimension in dimensions
    }


def test_facts_of_a_dwg_say_so_and_fit_no_gold_cache(tmp_path: Path) -> None:
    """The version that signs them is none that a config can pin, so no pinned score can come of them."""
    content = saved(one_of_each(), tmp_path / "kinds.dwg")
    metadata = inspected(content)
    write_entry(tmp_path / "gold", reference_png=b"", render_png=b"", **entry_of(metadata))

    assert ("DWG", "AC1015") == (metadata.source.format, metadata.source.acad_version)
    assert f"{identity().version}+dwg" == metadata.evaluator.version
    assert ["dwg_inspected"] == [warning.code for warning in metadata.warnings]
    with pytest.raises(EvaluationError) as refused:
        load_entry(tmp_path / "gold", "t", evaluator_name="ezdxf", evaluator_version=identity().version)
    assert "evaluator_version_mismatch" == refused.value.code


def test_the_pinned_evaluator_reads_no_dwg(tmp_path: Path) -> None:
    """A DWG where a DXF was to be saved stays an invalid drawing, with the bytes that it has always had."""
    metadata = Facts.of(saved(one_of_each(), tmp_path / "kinds.dwg")).metadata(None)

    assert (identity(), "unreadable") == (metadata.evaluator, metadata.invalid.code if metadata.invalid else None)


def test_an_inspection_reads_a_dxf_as_the_pinned_evaluator_does() -> None:
    """Nothing but the signature differs, so a DXF may stand beside a DWG."""
    content = (SOURCES / "bracket.dxf").read_bytes()
    pinned = json.loads(dump_pretty(Facts.of(content).metadata(None)))
    looked = json.loads(dump_pretty(Facts.of(content, is_inspection=True).metadata(None)))

    assert json.loads(inspector().model_dump_json()) == looked.pop("evaluator")
    assert {name: value for name, value in pinned.items() if name != "evaluator"} == looked


@pytest.mark.parametrize("kept", [6, 64, 1000, 4000])
def test_a_torn_dwg_is_unreadable_and_no_failure(tmp_path: Path, kept: int) -> None:
    """The code comes from the drawing."""
    content = saved(one_of_each(), tmp_path / "kinds.dwg")[:kept]
    metadata = inspected(content)

    assert "unreadable" == (metadata.invalid.code if metadata.invalid else None)
    assert f"{identity().version}+dwg" == metadata.evaluator.version


def test_a_kind_that_the_reader_lacks_is_counted_and_listed() -> None:
    """A table of a later program has no shape here. Its name comes from the file, and cannot make another entity."""
    document = new()
    made = [
        placeholder(document.modelspace(), kind, {"layer": "0"})
        for kind in ("ACAD_TABLE", "MLINE", "FUTURE\nTHING\n0\nLINE")
    ]

    assert ["ACAD_TABLE", "MLINE", "FUTURE_THING_0_LINE"] == [entity.dxftype() for entity in made]
    assert 3 == len(document.modelspace())


def one_of_each() -> Any:
    drawing = ezdwg.new()
    space = drawing.modelspace()
    space.add_line((0, 0), (100, 0))
    space.add_lwpolyline([(0, 0), (100, 0), (100, 50), (0, 50)], closed=True, bulges=[0, 0.5, 0, 0])
    space.add_circle((50, 25), radius=10)
    space.add_arc((20, 20), radius=5, start_angle=10, end_angle=100)
    space.add_ellipse((70, 25), (8, 0, 0), axis_ratio=0.5)
    space.add_text("HELLO", (5, 5), height=3)
    space.add_mtext("{\\fArial;A}\\PB", (5, 40), char_height=2.5)
    space.add_point((1, 2, 0))
    space.add_solid([(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)])
    space.add_hatch([[(60, 5), (80, 5), (80, 15), (60, 15)]], pattern="ANSI31", pattern_scale=10)
    space.add_linear_dim((50, -10), (0, 0), (100, 0))
    space.add_radius_dim((50, 25), 10.0, 30.0)
    space.add_polyline3d([(0, 0, 0), (1, 1, 1), (2, 0, 5)])
    space.add_polyline2d([(0, 60), (10, 60), (10, 70)], closed=True)
    space.add_spline([(0, 80, 0), (10, 90, 0), (20, 80, 0), (30, 90, 0)], degree=3)
    space.add_3dface([(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 1)])
    return drawing


def saved(drawing: Any, path: Path) -> bytes:
    drawing.save(str(path))
    return path.read_bytes()


def inspected(content: bytes) -> Metadata:
    return Facts.of(content, is_inspection=True).metadata(None)


def entry_of(metadata: Metadata) -> dict[str, Any]:
    """What an entry is drafted from, without its pictures."""
    return {
        "task_id": "t",
        "profile": "2d",
        "placement": "absolute",
        "metadata_json": dump_pretty(metadata),
        "window": window_of(metadata),
        "size_px": RENDER_SIZE_PX,
    }


def worth_of_dwg(source: Path, path: Path) -> float:
    """The score, without pictures, of a DXF drawing that was written again as DWG, against the DXF itself."""
    facts = Facts.of(source.read_bytes(), is_inspection=True).metadata(None)
    gold = draft_entry(render_png=b"", **entry_of(facts)).gold
    candidate = inspected(saved(written_again(source), path))
    return score_drawing(candidate=candidate, render=None, gold=gold).score.deterministic


def written_again(source: Path) -> Any:
    """The drawing of a DXF file, for the kinds that the suite's golds have."""
    document, drawing = readfile(source), ezdwg.new()
    drawing.header["insunits"] = document.header["$INSUNITS"]
    for line in document.linetypes:
        if line.dxf.name.upper() not in ("BYLAYER", "BYBLOCK", "CONTINUOUS"):
            drawing.linetypes[line.dxf.name] = {"dashes": list(line.simplified_line_pattern()), "description": ""}
    for layer in document.layers:
        named = {} if layer.dxf.linetype.upper() == "CONTINUOUS" else {"linetype": layer.dxf.linetype}
        drawing.layers[layer.dxf.name] = {"color_index": layer.dxf.color, **named}
    for entity in document.modelspace():
        add(drawing.modelspace(), entity)
    return drawing


def add(space: Any, entity: Any) -> None:
    dxf, layer = entity.dxf, {"layer": entity.dxf.layer}
    match entity.dxftype():
        case "LINE":
            space.add_line(dxf.start.xyz, dxf.end.xyz, **layer)
        case "CIRCLE":
            space.add_circle(dxf.center.xyz, radius=dxf.radius, **layer)
        case "ARC":
            space.add_arc(
                dxf.center.xyz, radius=dxf.radius, start_angle=dxf.start_angle, end_angle=dxf.end_angle, **layer
            )
        case "LWPOLYLINE":
            points = entity.get_points("xyb")
            bulges = [bulge for _, _, bulge in points]
            space.add_lwpolyline([(x, y) for x, y, _ in points], bulges=bulges, closed=entity.closed, **layer)
        case "TEXT":
            names = ("height", "rotation", "halign", "valign")
            more = {"align_point": dxf.align_point.xyz} if dxf.hasattr("align_point") else {}
            more |= {name: dxf.get(name) for name in names if dxf.get(name) is not None}
            space.add_text(dxf.text, dxf.insert.xyz, **more, **layer)
        case "DIMENSION":
            kind = {0: "linear", 1: "aligned", 3: "diameter", 4: "radius"}[dxf.dimtype & 7]
            names = ("defpoint", "defpoint2", "defpoint3", "defpoint4", "text_midpoint")
            points = {name: dxf.get(name).xyz for name in names if dxf.hasattr(name)}
            space.add_dimension(kind, **points, text=dxf.get("text", ""), angle=dxf.get("angle", 0.0), **layer)
        case other:
            raise AssertionError(f"a gold has {other}")


def rounded_circle(geom: Any) -> tuple[tuple[float, ...], float]:
    return tuple(round(number, 9) + 0.0 for number in geom.center), round(geom.radius, 9)
