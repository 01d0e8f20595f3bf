"""Keeps a provider that sends our key back to us from bringing it into a trace, a log or an error."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable
from urllib.parse import quote

from pydantic import SecretStr

from contract.redaction import REDACTED, SECRET_CHARS_MIN
from pilot.models.wire import Answer


def without_secrets(answer: Answer, secrets: Iterable[SecretStr]) -> Answer:
    """The same answer with every secret in its headers and body replaced, also where it was escaped or encoded.

    Nothing else changes, whatever it looks like: signatures and encrypted thoughts go back to the provider as they are.
    """
    forms = sorted({form for secret in secrets for form in _forms(secret.get_secret_value())}, key=len, reverse=True)
    body = answer.body
    headers = answer.headers
    for form in forms:
        if (encoded := form.encode()) in body:
            body = body.replace(encoded, REDACTED.encode())
        if any(form in value for value in headers.values()):
            headers = {name: value.replace(form, REDACTED) for name, value in headers.items()}
    if body is answer.body and headers is answer.headers:
        return answer
    return Answer(answer.status, headers, body)


def _forms(secret: str) -> set[str]:
    """How a secret may look in JSON, in a URL, in HTML and in an `Authorization: Basic` header."""
    if len(secret) < SECRET_CHARS_MIN:
        return set()
    in_json = json.dumps(secret)[1:-1]
    return {
        secret,
        in_json,
        in_json.replace("/", "\\/"),
        quote(secret, safe=""),
        quote(secret),
        html.escape(secret),
        base64.b64encode(secret.encode()).decode(),
    }
