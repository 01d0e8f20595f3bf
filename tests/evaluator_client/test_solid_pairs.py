"""Whole 3D drawings, from DXF to score: a bracket of two plates and a rib, drawn in several ways and with faults.

No CAD program here draws bodies, so these pairs stand for the tasks of hosts that have one.
"""

from __future__ import annotations

import io
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from ezdxf.acis import api as acis
from ezdxf.filemanagement import new
from ezdxf.render import MeshBuilder, MeshTransformer
from ezdxf.render.forms import cube

from broker.evaluator.export import Facts
from contract.metadata import Metadata
from contract.records import dump_pretty
from evaluator_client.gold import GoldEntry
from evaluator_client.gold_writer import demand_self_check, draft_entry, gold_window
from evaluator_client.score import score_drawing
from evaluator_client.windows import RENDER_SIZE_PX

Box = tuple[tuple[float, float, float], tuple[float, float, float]]

# Corner and size of each body, in millimetres.
BASE: Box = ((0, 0, 0), (120, 60, 10))
WALL: Box = ((0, 0, 10), (10, 60, 70))
RIB: Box = ((10, 25, 10), (50, 10, 40))
BRACKET = (BASE, WALL, RIB)


def body(box: Box) -> MeshTransformer:
    corner, size = box
    mesh = cube(center=False)
    mesh.scale(*size)
    mesh.translate(*corner)
    return mesh


def as_mesh(space: Any, mesh: MeshBuilder) -> None:
    mesh.render_mesh(space, dxfattribs={"layer": "BODY"})


def as_faces(space: Any, mesh: MeshBuilder) -> None:
    mesh.render_3dfaces(space, dxfattribs={"layer": "BODY"})


def as_polyface(space: Any, mesh: MeshBuilder) -> None:
    mesh.render_polyface(space, dxfattribs={"layer": "BODY"})


def as_solid(space: Any, mesh: MeshBuilder) -> None:
    solid = space.add_3dsolid(dxfattribs={"layer": "BODY"})
    acis.export_dxf(solid, [acis.body_from_mesh(mesh)])


WAYS = {"mesh": as_mesh, "faces": as_faces, "polyface": as_polyface, "solid": as_solid}


def facts(boxes: tuple[Box, ...], way: str = "solid", **more: Any) -> Metadata:
    """What the evaluator reports of these bodies; `plan` adds their outline as lines, `note` a text far away."""
    document = new("R2018")
    document.layers.add("BODY")
    space = document.modelspace()
    for box in boxes:
        WAYS[way](space, body(box))
    if more.get("plan"):
        for (x, y, _), (dx, dy, _) in BRACKET:
            space.add_lwpolyline([(x, y), (x + dx, y), (x + dx, y + dy), (x, y + dy)], close=True)
    if more.get("note"):
        space.add_text("SEE SHEET 2", height=5, dxfattribs={"insert": (5_000, 5_000)})
    stream = io.StringIO()
    document.write(stream)
    return Facts.of(stream.getvalue().encode()).metadata(None)


@cache
def gold() -> GoldEntry:
    """The bracket as an AutoCAD gold would be: solids."""
    content = dump_pretty(facts(BRACKET))
    entry = draft_entry(
        task_id="bracket3d",
        profile="3d",
        placement="absolute",
        metadata_json=content,
        render_png=b"",
        window=gold_window(content, what="the bracket"),
        size_px=RENDER_SIZE_PX,
    ).gold
    demand_self_check(entry)
    return entry


def worth(metadata: Metadata) -> tuple[float, float]:
    """`solids` and the whole score."""
    score = score_drawing(candidate=metadata, render=None, gold=gold()).score
    return score.components["solids"].score or 0.0, score.deterministic


@pytest.mark.parametrize("way", ["mesh", "polyface", "solid"])
def test_the_bodies_are_measured_however_they_are_drawn(way: str) -> None:
    """Solids with flat faces and meshes of both kinds have the same boxes and volumes."""
    physical = facts(BRACKET, way).physical_extents_3d

    assert physical is not None
    assert [72_000.0, 42_000.0, 20_000.0] == sorted((round(b.volume or 0.0, 6) for b in physical.bodies), reverse=True)
    assert ((0.0, 0.0, 0.0), (120.0, 60.0, 80.0), []) == (physical.min, physical.max, physical.unsupported)


def test_single_faces_are_one_body_where_they_share_corners() -> None:
    """Six faces that stand alone in the file close around the rib."""
    physical = facts((RIB,), "faces").physical_extents_3d

    assert physical is not None
    assert [("mesh", 20_000.0)] == [(b.kind, round(b.volume or 0.0, 6)) for b in physical.bodies]


def test_a_right_bracket_is_worth_one_in_any_order() -> None:
    """A gold that its own drawing could not pass would be a gate that nobody passes."""
    assert (1.0, 1.0) == worth(facts(BRACKET))
    assert (1.0, 1.0) == worth(facts(BRACKET[::-1]))


def test_faults_cost_by_how_large_they_are() -> None:
    """A rib too long, a rib missing, a wall missing, the base alone, another box around nothing."""
    longer: Box = ((10, 25, 10), (55, 10, 40))
    envelope: Box = ((0, 0, 0), (120, 60, 80))
    drawn = [BRACKET, (BASE, WALL, longer), (BASE, WALL), (BASE, RIB), (BASE,), (envelope,)]
    found = [worth(facts(boxes))[1] for boxes in drawn]

    assert found == sorted(found, reverse=True)
    assert [True] * 5 == [later < earlier for earlier, later in pairwise(found)]


def test_the_plan_of_the_bracket_is_no_bracket() -> None:
    """Lines where the bodies should be earn nothing of the component that decides, and the gate holds the rest down."""
    solids, deterministic = worth(facts((), plan=True))

    assert 0.0 == solids
    assert deterministic <= 0.25


def test_a_note_far_away_leaves_the_bodies_alone() -> None:
    """The box around everything grew a hundredfold; the bodies are measured alone."""
    assert 1.0 == worth(facts(BRACKET, note=True))[0]


def test_a_bracket_in_inches_is_another_bracket() -> None:
    """Drawing units are compared as drawn."""
    small = tuple((tuple(c / 25.4 for c in corner), tuple(s / 25.4 for s in size)) for corner, size in BRACKET)
    solids, deterministic = worth(facts(small))  # type: ignore[arg-type]  # three numbers each

    assert solids <= 0.01
    assert deterministic <= 0.3
