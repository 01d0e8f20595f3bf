"""LibreCAD's settings in a fresh home: full size, no first-run dialog, millimetres, no backups, no blinking cursor."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from contract.actions import SCREEN_HEIGHT_PX, SCREEN_WIDTH_PX

# Openbox's title bar in our theme, measured. LibreCAD places the drawing by the size that its window has while it loads
# the file. Born with the size of a maximised window, it need not have heard from the window manager by then.
TITLE_BAR_PX: Final = 19
# LibreCAD reads booleans as integers: `true` would mean 0.
LIBRECAD_CONF: Final = f"""[Appearance]
Language=en
LanguageCmd=en
Antialiasing=0
ScrollBars=1
[Defaults]
Unit=Millimeter
AutoBackupDocument=0
AutoSaveTime=60
AutoZoomDrawing=0
UseQtFileOpenDialog=1
[Draw]
TextFont=standard
TextHeight=2.5
[Keyboard]
EvaluateCommandOnSpace=1
ToggleFreeSnapOnSpace=0
[Startup]
FirstLoad=0
ShowSplash=0
Maximize=1
TabMode=0
EnableLeftSidebar=1
EnableCADToolbars=1
[WindowOptions]
SubWindowMode=0
[Geometry]
WindowX=0
WindowY=0
WindowWidth={SCREEN_WIDTH_PX}
WindowHeight={SCREEN_HEIGHT_PX - TITLE_BAR_PX}
[CustomToolbars]
DefaultCustom=DrawMText, DrawHatch, DrawImage, BlocksCreate, DrawPoint
"""

# Qt asks the KDE settings for the cursor's blink rate, installed or not; a blinking cursor never settles.
KDE_GLOBALS: Final = "[KDE]\nCursorBlinkRate=0\n"

APP_ENV: Final[dict[str, str]] = {
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "QT_FONT_DPI": "96",
    "QT_AUTO_SCREEN_SCALE_FACTOR": "0",
    "QT_QPA_PLATFORMTHEME": "kde",
    "KDE_SESSION_VERSION": "5",
    "XDG_CURRENT_DESKTOP": "KDE",
    # Qt would start a bus of its own, which outlives it.
    "DBUS_SESSION_BUS_ADDRESS": "disabled:",
    # Shared memory does not cross the walls.
    "QT_X11_NO_MITSHM": "1",
}


def seed_home(home: Path) -> None:
    """Write the settings below `home`, which is empty."""
    config = home / ".config"
    (config / "LibreCAD").mkdir(parents=True)
    (config / "LibreCAD" / "LibreCAD.conf").write_text(LIBRECAD_CONF)
    (config / "kdeglobals").write_text(KDE_GLOBALS)
    (home / ".run").mkdir(mode=0o700)
