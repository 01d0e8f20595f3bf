"""Which evaluator this is. A change of anything it reports or draws is a new version and needs a new gold cache."""

from __future__ import annotations

from typing import Final

EVALUATOR_NAME: Final = "ezdxf"
EVALUATOR_VERSION: Final = "1.1.0"
