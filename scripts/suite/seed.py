"""The drawing a task starts from: empty, metric, with a view that holds what is to be drawn."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from ezdxf._options import options
from ezdxf.document import Drawing
from ezdxf.filemanagement import new

# The oldest format that LibreCAD 2.2 writes is the one it saves by Ctrl+S, whatever it has loaded: AC1021.
DXF_VERSION = "R2007"
MILLIMETRES = 4


# The drawing area of LibreCAD's maximised window on the 1920x1080 desktop: x 41 to 1614, y 118 to 961, measured.
CANVAS_SIZE_PX = (1574, 844)
CANVAS_CENTER_PX = (828.0, 539.5)
# Dimension text and arrows are this large on paper, in millimetres.
DIMENSION_TEXT_MM = 3.5


@dataclass(frozen=True, slots=True)
class View:
    """What the canvas shows after a reset, and how large annotation is drawn.

    `center` is in drawing units; `px_per_unit` is the zoom; `annotation_scale` multiplies the sizes of dimension text
    and arrows.
    """

    center: tuple[float, float]
    px_per_unit: float
    annotation_scale: float = 1.0

    def to_px(self, x: float, y: float) -> tuple[int, int]:
        """The pixel of the desktop at which the point (x, y) is drawn as long as nobody zooms or pans."""
        return (
            round(CANVAS_CENTER_PX[0] + self.px_per_unit * (x - self.center[0])),
            round(CANVAS_CENTER_PX[1] - self.px_per_unit * (y - self.center[1])),
        )


def dimension_settings(scale: float) -> dict[str, Any]:
    """Header values of dimensions, without the `$`: ISO proportions, text above the line, two decimals, no zeros."""
    return {
        "DIMSCALE": scale,
        "DIMTXT": DIMENSION_TEXT_MM,
        "DIMASZ": DIMENSION_TEXT_MM,
        "DIMEXO": 1.0,
        "DIMEXE": 2.0,
        "DIMGAP": 1.0,
        "DIMTAD": 1,
        "DIMTIH": 0,
        "DIMTOH": 0,
        "DIMDEC": 2,
        "DIMZIN": 8,
        "DIMLUNIT": 2,
        "DIMADEC": 0,
        # The full stop as decimal separator, as its character code.
        "DIMDSEP": 46,
        "DIMTOFL": 1,
    }


def new_drawing(view: View) -> Drawing:
    """An empty drawing in millimetres whose bytes depend on the arguments alone."""
    # Else ezdxf writes the time, two random ids and its own version.
    options.write_fixed_meta_data_for_testing = True
    drawing = new(DXF_VERSION, setup=False)
    header = drawing.header
    header["$INSUNITS"] = MILLIMETRES
    header["$MEASUREMENT"] = 1
    header["$LUNITS"] = 2
    header["$LUPREC"] = 4
    style = drawing.dimstyles.get("Standard")
    for name, value in dimension_settings(view.annotation_scale).items():
        header[f"${name}"] = value
        style.dxf.set(name.lower(), value)
    width, height = (pixels / view.px_per_unit for pixels in CANVAS_SIZE_PX)
    # LibreCAD 2.2 shows 2c - (width, height)/2 in the middle when the file says that the centre is c (measured).
    center = ((view.center[0] + width / 2) / 2, (view.center[1] + height / 2) / 2)
    viewport = drawing.set_modelspace_vport(height=height, center=center)
    viewport.dxf.grid_on = 1
    # LibreCAD offers every layer that it finds to the model; this one is nobody's.
    if drawing.layers.has_entry("Defpoints"):
        drawing.layers.remove("Defpoints")
    return drawing


def start_drawing(view: View) -> bytes:
    """The empty drawing as a file, byte for byte the same for the same view."""
    return to_bytes(new_drawing(view))


def to_bytes(drawing: Drawing) -> bytes:
    """The drawing as the ASCII DXF file of its version (UTF-8 since R2007)."""
    # ezdxf adds the classes of what a drawing holds in the order of a set, which is another one in each process.
    for name in sorted(drawing.entitydb.dxf_types_in_use()):
        drawing.classes.add_class(name)
    stream = io.StringIO()
    drawing.write(stream)
    return stream.getvalue().encode(drawing.output_encoding, errors="dxfreplace")
