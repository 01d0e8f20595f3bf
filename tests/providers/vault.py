"""The endpoint that hands out short-lived AWS credentials, as a pilot's AWS library asks for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import orjson

from tests.providers.http import Reply, Request
from tests.providers.refusals import JSON
from tests.providers.sigv4 import AwsAccount

VAULT: Final = "vault"
LIFETIME: Final = timedelta(hours=1)


@dataclass
class Vault:
    """Gives the account's newest session to whoever shows the token. `asked` counts how often it did."""

    account: AwsAccount
    token: str = "canary-credentials-token-5512"
    asked: int = 0
    lifetime: timedelta = field(default=LIFETIME)

    def answer(self, request: Request, *, now: datetime) -> Reply:
        """The credentials document, or 403."""
        if request.headers.get("authorization") != self.token:
            return Reply(403, orjson.dumps({"message": "forbidden"}), dict(JSON))
        self.asked += 1
        session = self.account.sessions[-1]
        expires_at = session.expires_at or now + self.lifetime
        document = {
            "AccessKeyId": session.access_key,
            "SecretAccessKey": session.secret_key,
            "Token": session.token,
            "Expiration": expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        return Reply(200, orjson.dumps(document), dict(JSON))
