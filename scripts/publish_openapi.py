"""Write the broker's OpenAPI document to docs/broker-openapi.json; a test fails when the file is not current."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Final, cast

from pydantic.warnings import UnsupportedFieldAttributeWarning

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from broker.app import build_routes  # noqa: E402 - found through the line above when the project is not installed
from broker.service import Service  # noqa: E402

PUBLISHED: Final = ROOT / "docs" / "broker-openapi.json"


def main() -> int:
    """Write the document, or with --check only compare. Exit code 1 when it is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    args = parser.parse_args()
    current = render()
    if not args.check:
        PUBLISHED.write_text(current)
        return 0
    if PUBLISHED.is_file() and PUBLISHED.read_text() == current:
        return 0
    print("docs/broker-openapi.json is not current; run scripts/publish_openapi.py", file=sys.stderr)
    return 1


def render() -> str:
    """The document as it belongs into the file."""
    # The routes are only described, so there is no service behind them.
    routes = build_routes(cast(Service, None), token_sha256="")
    # FastAPI silences this where it builds its fields, but our records are built later, when they are first used.
    warnings.simplefilter("ignore", UnsupportedFieldAttributeWarning)
    return json.dumps(routes.openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
