"""The rollout's own id in headers and fields, so that its requests meet the cache of the ones before."""

from __future__ import annotations

import hashlib
from typing import Final

from contract.profiles import Profile

# OpenAI answers 400 to a longer `prompt_cache_key` (reported by many of its users); OpenRouter passes it on.
CACHE_KEY_CHARS_MAX: Final = 64
# OpenRouter's bound on `session_id`.
STICKY_CHARS_MAX: Final = 256


def sticky_headers(profile: Profile, session_id: str) -> dict[str, str]:
    """The headers whose value is the rollout's id."""
    return dict.fromkeys(profile.sticky_headers, session_id[:STICKY_CHARS_MAX])


def sticky_fields(profile: Profile, session_id: str) -> dict[str, str]:
    """The body fields whose value is the rollout's id, or its digest where it is too long."""
    return {name: _value(name, session_id) for name in profile.sticky_fields}


def _value(name: str, session_id: str) -> str:
    if name == "prompt_cache_key" and len(session_id) > CACHE_KEY_CHARS_MAX:
        return hashlib.sha256(session_id.encode()).hexdigest()
    return session_id[:STICKY_CHARS_MAX]
