"""Short-lived AWS credentials made of whatever the operator's profile holds; long-lived keys never leave this process.

What a profile gives for a limited time already (single sign-on, an assumed role, a session) is passed on as it is, kept
fresh by botocore. Keys without an end are exchanged by STS GetSessionToken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import SecretStr

from contract.errors import BenchError
from supervisor.aws_account import AwsCredentialsMissing, session_for

# The longest that every kind of key may ask for (STS API reference, GetSessionToken).
SESSION_S: Final = 3600
# botocore asks for new ones 15 minutes before the end; those that it gets then must live longer.
RENEW_BEFORE: Final = timedelta(minutes=20)
# A session token in a file or a variable does not say when it ends, and its owner may replace it at any time.
UNKNOWN_LIFE: Final = timedelta(minutes=30)
LOOK_AGAIN: Final = timedelta(seconds=60)
# Rollouts that start together share a refusal as they share credentials.
TRY_AGAIN: Final = timedelta(seconds=10)
# Less than this left, and a request that is signed now might arrive too late.
USABLE: Final = timedelta(seconds=60)
CONNECT_S: Final = 3.0
READ_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ShortLived:
    """Credentials that end by themselves."""

    access_key_id: str
    secret_access_key: SecretStr
    session_token: SecretStr
    expires_at: datetime


class NoCredentials(BenchError):
    """There are none to hand out. `is_temporary`: the service that makes them could not be reached."""

    def __init__(self, message: str, *, hint: str, is_temporary: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_temporary = is_temporary


class ShortLivedSource:
    """Gives the credentials of one profile in one region. Safe to ask from many threads; AWS is asked by one at a time.

    Calls block, for seconds when AWS is asked. `session_for` makes the botocore session; `sts_url` is for tests.
    """

    def __init__(
        self,
        *,
        profile: str | None,
        region: str,
        utc_now: Callable[[], datetime],
        session_for: Callable[[str | None], Any] = session_for,
        sts_url: str | None = None,
    ) -> None:
        self._profile = profile
        self._region = region
        self._utc_now = utc_now
        self._session_for = session_for
        self._sts_url = sts_url
        self._asking = threading.Lock()
        self._session: Any = None
        self._current: ShortLived | None = None
        self._refusal: NoCredentials | None = None
        self._next_look = datetime.min.replace(tzinfo=UTC)

    def current(self) -> ShortLived:
        """Credentials that are valid for minutes at least. Raises `NoCredentials`."""
        now, current = self._utc_now(), self._current
        if now < self._next_look:
            return self._known(now)
        is_usable = current is not None and current.expires_at - now > USABLE
        # Whoever has something to go on with does not wait for whoever asks.
        if not self._asking.acquire(blocking=not is_usable):
            return self._known(now)
        try:
            if now >= self._next_look:
                self._look(now)
        finally:
            self._asking.release()
        return self._known(now)

    def _known(self, now: datetime) -> ShortLived:
        current, refusal = self._current, self._refusal
        if current is not None and current.expires_at - now > USABLE:
            return current
        assert refusal is not None, "a look that found nothing says why"
        raise refusal

    def _look(self, now: datetime) -> None:
        try:
            current = self._fetch(now)
        except NoCredentials as error:
            self._refusal = error
            self._next_look = now + TRY_AGAIN
            return
        self._refusal = NoCredentials(
            f"the AWS credentials of {self._named()} end at {current.expires_at:%H:%M:%S}Z",
            hint="Log in again, then resume the batch.",
        )
        self._current = current

    def _fetch(self, now: datetime) -> ShortLived:
        from botocore.credentials import RefreshableCredentials
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            session = self._session if self._session is not None else self._session_for(self._profile)
            credentials = session.get_credentials()
            frozen = credentials.get_frozen_credentials()
            if frozen.token is None:
                current = self._exchange(session)
                # A clock that is wrong must not make every request a call to AWS.
                self._next_look = max(now + LOOK_AGAIN, current.expires_at - RENEW_BEFORE)
                return current
        except AwsCredentialsMissing as error:
            raise NoCredentials(error.message, hint=error.hint) from None
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "no code")
            raise NoCredentials(
                f"AWS gives no short-lived credentials for {self._named()} ({code})",
                hint="Check its keys, or use a profile with single sign-on or a role.",
            ) from None
        except BotoCoreError as error:
            raise NoCredentials(
                f"AWS cannot be asked for short-lived credentials of {self._named()} ({type(error).__name__})",
                hint="Check the network, then resume the batch.",
                is_temporary=True,
            ) from None
        is_renewing = isinstance(credentials, RefreshableCredentials)
        # A file or variable is read anew each time; what renews itself is kept, or each look would ask AWS.
        self._session = session if is_renewing else None
        self._next_look = now + LOOK_AGAIN
        # botocore has no public name for it.
        expires_at = credentials._expiry_time if is_renewing else now + UNKNOWN_LIFE
        return ShortLived(
            access_key_id=frozen.access_key,
            secret_access_key=SecretStr(frozen.secret_key),
            session_token=SecretStr(frozen.token),
            expires_at=expires_at.astimezone(UTC),
        )

    def _exchange(self, session: Any) -> ShortLived:
        from botocore.config import Config

        config = Config(connect_timeout=CONNECT_S, read_timeout=READ_S, retries={"total_max_attempts": 2})
        client = session.create_client("sts", region_name=self._region, endpoint_url=self._sts_url, config=config)
        try:
            made = client.get_session_token(DurationSeconds=SESSION_S)["Credentials"]
        finally:
            client.close()
        return ShortLived(
            access_key_id=made["AccessKeyId"],
            secret_access_key=SecretStr(made["SecretAccessKey"]),
            session_token=SecretStr(made["SessionToken"]),
            expires_at=made["Expiration"].astimezone(UTC),
        )

    def _named(self) -> str:
        return f"the profile {self._profile!r}" if self._profile else "the default credential chain"
