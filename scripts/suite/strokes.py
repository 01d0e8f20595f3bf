"""A stroke font of our own, so that pictures depend on no installed font.

Each glyph is drawn on a grid 4 wide and 6 high: two digits are x and y of a point, a space goes on to the next point, a
bar lifts the pen. 6 grid units are the text height.
"""

from __future__ import annotations

from collections.abc import Iterator

GRID_HEIGHT = 6
# From one glyph to the next.
ADVANCE = 6

_O = "10 30 41 45 36 16 05 01 10"
_P = "00 06 36 45 44 33 03"
_GLYPHS = {
    " ": "",
    "A": "00 04 26 44 40|03 43",
    "B": "00 06 36 45 44 33 03|33 42 41 30 00",
    "C": "45 36 16 05 01 10 30 41",
    "D": "00 06 26 44 42 20 00",
    "E": "46 06 00 40|03 33",
    "F": "46 06 00|03 33",
    "G": "45 36 16 05 01 10 30 41 43 23",
    "H": "00 06|40 46|03 43",
    "I": "10 30|20 26|16 36",
    "J": "46 41 30 10 01",
    "K": "00 06|46 02|13 40",
    "L": "06 00 40",
    "M": "00 06 23 46 40",
    "N": "00 06 40 46",
    "O": _O,
    "P": _P,
    "Q": f"{_O}|22 40",
    "R": f"{_P}|23 40",
    "S": "45 36 16 05 04 13 33 42 41 30 10 01",
    "T": "06 46|26 20",
    "U": "06 01 10 30 41 46",
    "V": "06 20 46",
    "W": "06 10 23 30 46",
    "X": "00 46|06 40",
    "Y": "06 23 46|23 20",
    "Z": "06 46 00 40",
    "0": f"{_O}",
    "1": "04 26 20|10 30",
    "2": "05 16 36 45 44 00 40",
    "3": "05 16 36 45 44 33 42 41 30 10 01|13 33",
    "4": "30 36 02 42",
    "5": "46 06 03 33 42 41 30 10 01",
    "6": "45 36 16 05 01 10 30 41 42 33 13 02",
    "7": "06 46 10",
    "8": "13 04 05 16 36 45 44 33 13 02 01 10 30 41 42 33",
    "9": "01 10 30 41 45 36 16 05 04 13 33 44",
    ".": "10 20 21 11 10",
    "-": "03 43",
    "+": "03 43|21 25",
    "m": "00 04|03 14 23 20|23 34 43 40",
    "x": "00 44|04 40",
    "Ø": f"{_O}|00 46",
}
# Drawn at half size in the upper half.
_RAISED = {"²": "2", "°": "O"}


def strokes(text: str) -> Iterator[list[tuple[float, float]]]:
    """The polylines of a line of text, in grid units from the left end of its baseline.

    Raises `KeyError` for a character that has no glyph: add it rather than leave it out.
    """
    for index, char in enumerate(text):
        glyph, scale, raised = (_GLYPHS[_RAISED[char]], 0.5, 3.0) if char in _RAISED else (_GLYPHS[char], 1.0, 0.0)
        for stroke in filter(None, glyph.split("|")):
            yield [
                (index * ADVANCE + int(point[0]) * scale, int(point[1]) * scale + raised) for point in stroke.split()
            ]


def width(text: str) -> float:
    """From the first glyph's left to the last one's right, in grid units."""
    return max(0, len(text) * ADVANCE - 2)
