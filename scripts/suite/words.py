"""What a model is told: about the CAD program (every task) and about one task."""

from __future__ import annotations

from scripts.suite.model import Layer, TaskDefinition

HOST_NOTES = """\
The CAD program is LibreCAD 2.2, maximised on a 1920x1080 desktop, with the drawing of the task open. The black \
canvas (x 41 to 1614, y 118 to 961) shows the drawing; the layer list is at the right (around x 1790, y 600), the \
command line below it (around x 1770, y 963).

Command line
- It has the focus at the start. Dialogs, Escape and clicks on the canvas take the focus away, and then typed letters \
are lost: press Ctrl+M before you type commands.
- Enter and Space both end an input, so "line 0,0 100,0 100,50 k" works as one typed line. End it with a newline.
- k and Enter end the command that is active and keep the focus. End every command with k before you type the next \
one. u undoes, za zooms to the whole drawing.
- Points: 30,40 is absolute, @30,40 relative to the last point, 50<30 is polar (distance<degrees) from the origin and \
@50<30 from the last point. The decimal sign is a full stop.

Drawing
- line P1 P2 P3 ... k draws connected lines; close instead of the last point closes them. rec P1 P2 k draws a rectangle.
- circle CENTRE RADIUS k, for example circle 60,40 12 k.
- arc takes three points: start, a point on the arc, end. arc 10,0 0,10 -10,0 k is the upper half of a circle.
- fillet radius 10, then click both lines near their common corner, a few pixels to the side on which the arc's \
centre lies: the arc that is nearest to the second click is made, and both lines are trimmed. Further pairs of clicks \
go on; k ends it.
- Dimensions: dh (horizontal) and dv (vertical) take first point, second point and a point on the dimension line, as \
in dh 0,0 120,0 60,-15 k. dimdiametric and dimradial want a click on a circle or arc and then a point that gives the \
direction. The text is filled in by the program.
- text opens a dialog for single-line text: type the text, set the height (click into the field, Ctrl+A, type), press \
Enter. Then move the pointer over the canvas once, press Ctrl+M and type the insertion point: before the pointer has \
moved, a typed point is ignored. Then k.
- To change or copy: drag a window from left to right over the canvas with no command active (it selects what lies \
inside completely), then Ctrl+M and a command: mi P1 P2 mirrors about a line, mv P1 P2 moves or copies. A dialog then \
asks whether the original is deleted (the default), kept, or copied several times. Delete removes what is selected.

Layers
- There is no layer command. Ctrl+L opens the dialog of a new layer with the cursor in its name. Choose colour, width \
and line type by clicking the list and typing the first letters of the entry (red, cyan, 0.50, center, dash), then \
Enter; Enter again closes the dialog. The new layer becomes the current one, and new entities go to it.
- To draw on a layer again, click its name in the layer list.
- The current layer's colour, width and line type apply as long as the three lists at the top left say "By Layer".

Saving
- Ctrl+S saves into the file of the task, without a dialog. Do not use "Save as" and do not open another drawing.
- Only what is saved counts. End with the action finish after you have saved."""


def prompt_of(task: TaskDefinition) -> str:
    """The task as every model gets it, beside the reference picture."""
    layers = "\n".join(_layer_line(layer) for layer in task.layers)
    return f"""\
{task.title}

Draw what is described below and shown in the reference picture. The drawing that is open is empty. Its unit is the \
millimetre. All coordinates are absolute, (x, y) from the origin (0, 0) of the drawing, x to the right and y upwards; \
the place on the sheet counts as well as the size.

Layers. Make these, and put everything on the layer under whose name it is listed. Colour, line type and width come \
from the layer.
{layers}

{task.brief}

Draw nothing else: no helping lines and nothing twice. When the drawing is complete, save it with Ctrl+S and end with \
the action finish.
"""


def _layer_line(layer: Layer) -> str:
    color = "white (Black / White in the list, the default)" if layer.color == "white" else layer.color
    linetype = {"continuous": "Continuous", "center": "Center", "dash": "Dash"}[layer.linetype]
    width = f"{layer.width_mm:.2f} mm" if layer.width_mm else "as it is"
    return f"- {layer.name}: colour {color}, line type {linetype}, width {width}"
