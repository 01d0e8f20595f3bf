"""Which variable holds which provider's key. Names only; the command line reads the values and wraps them at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import SecretStr

# Parallel rollout operations, "Provider paths". `mantle` and `bedrock` sign with an AWS profile instead of a key.
KEY_VARIABLES: Final[Mapping[str, str]] = {
    "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "fireworks": "FIREWORKS_API_KEY",
}


def keys_in(environment: Mapping[str, str]) -> dict[str, SecretStr]:
    """The keys that are set, by provider. A variable that is empty counts as not set."""
    return {
        provider: SecretStr(environment[variable])
        for provider, variable in KEY_VARIABLES.items()
        if environment.get(variable, "").strip()
    }


def redacted(text: str, secrets: Iterable[SecretStr]) -> str:
    """`text` without any of the secrets: the last wall, for text that quotes what an operator wrote."""
    for secret in secrets:
        value = secret.get_secret_value()
        if len(value) >= SECRET_CHARS_MIN:
            text = text.replace(value, "[secret]")
    return text


# Shorter values are no keys, and taking them out of a text would only garble it.
SECRET_CHARS_MIN: Final = 8
