"""Reads providers' keys from an environment; the command line calls this at once, so that no value travels bare."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import SecretStr

from contract.credentials import KEY_VARIABLES as KEY_VARIABLES
from contract.redaction import SECRET_CHARS_MIN as SECRET_CHARS_MIN


def key_problem(key: SecretStr) -> str | None:
    """Why no HTTP header can carry this key, or null. The key is not quoted."""
    value = key.get_secret_value()
    if "\n" in value or "\r" in value:
        return "holds a line break"
    if not all("!" <= char <= "~" for char in value):
        return "holds a space or another character that no key has"
    return None


def keys_in(environment: Mapping[str, str]) -> dict[str, SecretStr]:
    """The keys that are set, by provider. A variable that is empty counts as not set."""
    return {
        provider: SecretStr(environment[variable])
        for provider, variable in KEY_VARIABLES.items()
        if environment.get(variable, "").strip()
    }
