"""`score`: compare two drawings, or a whole corpus of them, without a run. Options only, as in `cli`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from supervisor.entry import Session, debug_option

FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
NEW: Final = click.Path(path_type=Path)
PROFILES: Final = ("2d", "3d", "3d-extents")
PLACEMENTS: Final = ("absolute", "translation")


@click.group()
@debug_option
def score() -> None:
    """Compare drawings without a run: the same facts, renders and scores that a rollout gets."""


@score.command(epilog="Exit status: 0 there is a score, also of an invalid candidate; 1 there is none.")
@click.option("--gold", type=FILE, required=True, help="The drawing that is right (DXF, or DWG to look at).")
@click.option("--candidate", type=FILE, required=True, help="The drawing to compare with it (DXF, or DWG to look at).")
@click.option("--profile", type=click.Choice(PROFILES), default="2d", show_default=True, help="What is compared.")
@click.option(
    "--placement",
    type=click.Choice(PLACEMENTS),
    default="absolute",
    show_default=True,
    help="Whether a drawing may stand elsewhere.",
)
@click.option("--out", type=NEW, required=True, help="A new folder for facts, renders, score, diff and overlay.")
@click.option("--no-render", is_flag=True, help="Leave out the pictures and the component that compares them.")
@click.option("--json", "as_json", is_flag=True, help="Print score.json instead of a table.")
@debug_option
@click.pass_obj
def pair(
    session: Session,
    *,
    gold: Path,
    candidate: Path,
    profile: str,
    placement: str,
    out: Path,
    no_render: bool,
    as_json: bool,
) -> int:
    """Score one drawing against another."""
    from supervisor.scoring import run_pair

    return run_pair(
        session.environment,
        gold=gold,
        candidate=candidate,
        profile=profile,
        placement=placement,
        out=out,
        has_render=not no_render,
        as_json=as_json,
        stream=sys.stdout,
    )


@score.command(epilog="Exit status: 0 every ordering holds; 1 one does not, or a case could not be evaluated.")
@click.option("--manifest", type=FILE, required=True, help="The corpus's manifest.json; its drawings stand beside it.")
@click.option("--out", type=NEW, required=True, help="Where to write the scores by case (JSON).")
@click.option("--keep", type=NEW, help="A new folder for the facts and pictures of all cases; not kept when left out.")
@click.option("--no-render", is_flag=True, help="Leave out the pictures: the result is marked partial.")
@debug_option
@click.pass_obj
def corpus(session: Session, *, manifest: Path, out: Path, keep: Path | None, no_render: bool) -> int:
    """Score every case of a test corpus and check the orderings that it demands."""
    from supervisor.scoring import run_corpus

    return run_corpus(
        session.environment, manifest=manifest, out=out, keep=keep, has_render=not no_render, stream=sys.stdout
    )
