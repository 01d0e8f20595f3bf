"""Which variable holds which provider's key: names only, for the room that reads them and for messages about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Parallel rollout operations, "Provider paths". `mantle` and `bedrock` sign with an AWS profile instead of a key.
KEY_VARIABLES: Final[Mapping[str, str]] = {
    "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "fireworks": "FIREWORKS_API_KEY",
}
