"""The door to AWS credentials: who may open it, what is behind it, and that no long-lived key ever passes it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import anyio
import botocore.session
import orjson
import pytest
from botocore.credentials import ContainerProvider, Credentials, RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError
from botocore.utils import ContainerMetadataFetcher
from moto import mock_aws
from pydantic import SecretStr

from contract.bridge import ThreadBridge
from contract.phases import Cause, EndedBy, Outcome
from contract.run_dir import BatchDir
from supervisor.aws_account import AwsCredentialsMissing
from supervisor.aws_endpoint import PATH, REQUEST_BYTES_MAX, AwsEndpoint, Loan
from supervisor.aws_short_lived import NoCredentials, ShortLived, ShortLivedSource
from supervisor.batch import execute
from tests.batch_fakes import (
    FakeWorld,
    in_virtual_time,
    prepare,
    quiet_console,
    read_result,
    read_state,
    virtual_ambient,
)

NOW = datetime(2026, 1, 2, 3, 0, tzinfo=UTC)
LONG_LIVED = ("AKIAEXAMPLE", "canary-long-lived-secret-key")
EXPIRED = NoCredentials("the login is over", hint="Log in again.")
UNREACHABLE = NoCredentials("no network", hint="Check it.", is_temporary=True)


def short_lived(number: int = 1, *, life: timedelta = timedelta(hours=1), now: datetime | None = None) -> ShortLived:
    return ShortLived(
        access_key_id=f"ASIA{number}",
        secret_access_key=SecretStr(f"canary-short-secret-{number}"),
        session_token=SecretStr(f"canary-session-{number}"),
        expires_at=(now or datetime.now(UTC)) + life,
    )


@dataclass(slots=True)
class FakeSource:
    """Gives, or raises, what it is told to."""

    given: ShortLived | NoCredentials = field(default_factory=short_lived)
    asked: int = 0

    def current(self) -> ShortLived:
        self.asked += 1
        if isinstance(self.given, NoCredentials):
            raise self.given
        return self.given


@contextmanager
def lent(source: Any) -> Iterator[tuple[Loan, AwsEndpoint]]:
    """An endpoint with one token, used from this thread as a pilot would."""
    loans: list[Loan] = []
    done = threading.Event()
    ready = threading.Event()
    with AwsEndpoint.opened(source, bridge=ThreadBridge(2)) as endpoint:

        async def hold() -> None:
            async with endpoint.lent() as loan:
                loans.append(loan)
                ready.set()
                await anyio.to_thread.run_sync(done.wait)

        thread = threading.Thread(target=anyio.run, args=(hold,))
        thread.start()
        try:
            assert ready.wait(10)
            yield loans[0], endpoint
        finally:
            done.set()
            thread.join()


def ask(
    url: str, token: str | None, *, method: str = "GET", path: str = PATH, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection("127.0.0.1", int(url.split(":")[2].split("/")[0]), timeout=10)
    sent = {**({} if token is None else {"Authorization": token}), **(headers or {})}
    connection.request(method, path, headers=sent)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, orjson.loads(body) if body else {}


def container_credentials(loan: Loan, *, token: str | None = None) -> RefreshableCredentials:
    """What botocore makes of an address and a token; its pauses between attempts are left out."""
    environment = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": loan.url,
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": token or loan.token.get_secret_value(),
    }
    fetcher = ContainerMetadataFetcher(sleep=lambda seconds: None)
    credentials = ContainerProvider(environ=environment, fetcher=fetcher).load()
    assert isinstance(credentials, RefreshableCredentials)
    return credentials


def test_botocore_gets_credentials_and_knows_when_they_end() -> None:
    """The protocol is that of AWS containers, spoken by the SDK that pilots use."""
    source = FakeSource()
    with lent(source) as (loan, _):
        credentials = container_credentials(loan)
        frozen = credentials.get_frozen_credentials()

        assert ("ASIA1", "canary-short-secret-1", "canary-session-1") == (
            frozen.access_key,
            frozen.secret_key,
            frozen.token,
        )
        assert not credentials.refresh_needed()
        assert not credentials.refresh_needed(3500)
        assert credentials.refresh_needed(3700)


def test_credentials_near_their_end_are_fetched_anew() -> None:
    """botocore asks again by itself, with the same token."""
    source = FakeSource(short_lived(1, life=timedelta(minutes=5)))
    with lent(source) as (loan, _):
        credentials = container_credentials(loan)
        source.given = short_lived(2)

        assert "ASIA2" == credentials.get_frozen_credentials().access_key


def test_a_wrong_token_opens_nothing() -> None:
    """One character less, one more, another case, another scheme, none, or bytes that are no text."""
    with lent(FakeSource()) as (loan, _):
        token = loan.token.get_secret_value()
        wrong = [None, "", token[:-1], token + "x", token.swapcase(), f"Bearer {token}", "\xff" * 43]

        assert [401] * len(wrong) == [ask(loan.url, one)[0] for one in wrong]
        assert 200 == ask(loan.url, token)[0]
        with pytest.raises(CredentialRetrievalError, match="401"):
            container_credentials(loan, token="wrong")


def test_a_token_dies_with_its_rollout_and_no_two_are_the_same() -> None:
    """Others that are lent at the same time stay good."""
    tokens: list[str] = []
    statuses: list[int] = []

    async def work() -> None:
        with AwsEndpoint.opened(FakeSource(), bridge=ThreadBridge(2)) as endpoint:
            async with endpoint.lent() as kept:
                async with endpoint.lent() as over:
                    tokens.extend(loan.token.get_secret_value() for loan in (kept, over))
                for token in tokens:
                    status, _ = await anyio.to_thread.run_sync(ask, kept.url, token)
                    statuses.append(status)

    anyio.run(work)

    assert 2 == len(set(tokens))
    assert [200, 401] == statuses


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", f"{PATH}/", 404),
        ("GET", f"{PATH}?a=1", 404),
        ("GET", f"/x/..{PATH}", 404),
        ("POST", PATH, 404),
        ("HEAD", PATH, 404),
        ("DELETE", PATH, 404),
        ("NONSENSE", PATH, 404),
    ],
)
def test_there_is_one_thing_to_ask_for(method: str, path: str, status: int) -> None:
    """Also for those with a token."""
    with lent(FakeSource()) as (loan, _):
        assert status == ask(loan.url, loan.token.get_secret_value(), method=method, path=path)[0]


@pytest.mark.parametrize(("given", "status"), [(EXPIRED, 403), (UNREACHABLE, 503)])
def test_what_stops_us_is_told_to_those_with_a_token(given: NoCredentials, status: int) -> None:
    """403 asks for a person, 503 may be over in a moment; the words hold no secret."""
    source = FakeSource()
    with lent(source) as (loan, _):
        source.given = given
        answer = ask(loan.url, loan.token.get_secret_value())

        assert (status, str(given)) == (answer[0], answer[1]["message"])


def test_a_request_is_bounded() -> None:
    """A body is not read, headers are read up to a bound, and what is no request gets no answer that repeats it."""
    with lent(FakeSource()) as (loan, _):
        token = loan.token.get_secret_value()
        port = int(loan.url.split(":")[2].split("/")[0])

        assert 431 == ask(loan.url, token, headers={f"x-{number}": "y" * 1000 for number in range(20)})[0]
        assert 200 == ask(loan.url, token, headers={"x": "y" * 2000})[0]
        for content in (b"\x16\x03\x01\n", b"GET\n\n", b"G" * (REQUEST_BYTES_MAX * 2) + b"\n", b""):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                assert b"canary" not in _answer_to(content, connection)
        assert 200 == ask(loan.url, token)[0]


def _answer_to(content: bytes, connection: socket.socket) -> bytes:
    try:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(65536)
    except OSError:
        # Whoever has read enough hangs up, at any of these calls.
        return b""


def test_nothing_is_logged_and_nothing_prints_a_secret(capfd: Any, caplog: Any) -> None:
    """Neither a good request nor a bad one, and neither loan nor credentials as text."""
    source = FakeSource()
    with lent(source) as (loan, endpoint):
        token = loan.token.get_secret_value()
        ask(loan.url, token)
        ask(loan.url, "wrong-" + token)
        ask(loan.url, token, method="BREW")
        text = f"{loan!r} {loan} {source.given!r} {endpoint!r}"

    captured = capfd.readouterr()
    said = captured.out + captured.err + caplog.text + text
    assert "canary" not in said
    assert token not in said


def test_many_pilots_at_once_are_all_served() -> None:
    """Forty threads, eight requests each."""
    statuses: list[int] = []
    with lent(FakeSource()) as (loan, _):
        token = loan.token.get_secret_value()

        def pilot() -> None:
            statuses.extend(ask(loan.url, token)[0] for _ in range(8))

        threads = [threading.Thread(target=pilot) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert [200] * 320 == statuses


# --- where they come from ------------------------------------------------------------------------------------------


def session_with(credentials: Credentials) -> Callable[[str | None], Any]:
    def session_for(profile: str | None) -> Any:
        session = botocore.session.Session()
        session._credentials = credentials
        return session

    return session_for


def source_of(session_for: Callable[[str | None], Any], utc_now: Callable[[], datetime]) -> ShortLivedSource:
    return ShortLivedSource(profile="bench", region="eu-west-1", utc_now=utc_now, session_for=session_for)


@mock_aws(config={"core": {"mock_credentials": False}})
def test_long_lived_keys_are_exchanged_by_sts_and_stay_here() -> None:
    """What a pilot gets ends by itself and is not made of the operator's secret."""
    source = source_of(session_with(Credentials(*LONG_LIVED)), lambda: datetime.now(UTC))

    with lent(source) as (loan, _):
        frozen = container_credentials(loan).get_frozen_credentials()
        status, document = ask(loan.url, loan.token.get_secret_value())

    assert 200 == status
    assert frozen.token
    assert frozen.access_key not in LONG_LIVED
    assert not any(value in orjson.dumps(document).decode() for value in LONG_LIVED)
    assert 3600 >= (source.current().expires_at - datetime.now(UTC)).total_seconds() > 3000


@dataclass(slots=True)
class FakeSts:
    """A botocore session with long-lived keys whose STS answers from a list, and counts who asks at once."""

    clock: Callable[[], datetime]
    faults: list[Exception] = field(default_factory=list)
    pause_s: float = 0.0
    calls: int = 0
    at_once: int = 0
    at_once_max: int = 0

    def session_for(self, profile: str | None) -> Any:
        return self

    def get_credentials(self) -> Credentials:
        return Credentials(*LONG_LIVED)

    def create_client(self, service: str, **options: Any) -> Any:
        assert ("sts", "eu-west-1") == (service, options["region_name"])
        return self

    def get_session_token(self, DurationSeconds: int) -> Any:  # noqa: N803  (botocore's own spelling)
        self.calls += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        time.sleep(self.pause_s)
        self.at_once -= 1
        if self.faults:
            raise self.faults.pop(0)
        made = short_lived(self.calls, life=timedelta(seconds=DurationSeconds), now=self.clock())
        return {
            "Credentials": {
                "AccessKeyId": made.access_key_id,
                "SecretAccessKey": made.secret_access_key.get_secret_value(),
                "SessionToken": made.session_token.get_secret_value(),
                "Expiration": made.expires_at,
            }
        }

    def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class Clock:
    now: datetime = NOW

    def __call__(self) -> datetime:
        return self.now

    def forward(self, minutes: float) -> None:
        self.now += timedelta(minutes=minutes)


def test_credentials_are_kept_until_shortly_before_their_end() -> None:
    """New ones come while the old still live for longer than an SDK waits before it asks for new ones."""
    clock = Clock()
    sts = FakeSts(clock)
    source = source_of(sts.session_for, clock)

    seen = []
    for _ in range(9):
        seen.append(source.current().access_key_id)
        clock.forward(minutes=10)

    # 60 minutes of life, 20 of them kept in reserve.
    assert ["ASIA1"] * 4 + ["ASIA2"] * 4 + ["ASIA3"] == seen
    assert 3 == sts.calls


def test_aws_is_asked_by_one_at_a_time() -> None:
    """A hundred rollouts that start together cost one call."""
    clock = Clock()
    sts = FakeSts(clock, pause_s=0.05)
    source = source_of(sts.session_for, clock)
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.append(source.current().access_key_id)) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ["ASIA1"] * 100 == seen
    assert (1, 1) == (sts.calls, sts.at_once_max)


def test_while_aws_cannot_be_asked_the_old_ones_serve_until_their_end() -> None:
    """And AWS is asked again every ten seconds, not at every request."""
    from botocore.exceptions import EndpointConnectionError

    clock = Clock()
    sts = FakeSts(clock)
    source = source_of(sts.session_for, clock)
    source.current()
    sts.faults = [EndpointConnectionError(endpoint_url="https://sts") for _ in range(100)]
    clock.forward(minutes=45)

    assert ["ASIA1"] * 5 == [source.current().access_key_id for _ in range(5)]
    assert 2 == sts.calls
    clock.forward(minutes=14.5)
    with pytest.raises(NoCredentials, match="EndpointConnectionError") as caught:
        source.current()
    assert caught.value.is_temporary
    sts.faults = []
    clock.forward(minutes=1)
    assert "ASIA4" == source.current().access_key_id


def test_keys_that_aws_refuses_are_named_by_code_alone() -> None:
    """The answer's text may repeat what was sent."""
    from botocore.exceptions import ClientError

    answer = {"Error": {"Code": "InvalidClientTokenId", "Message": f"no such key {LONG_LIVED[1]}"}}
    sts = FakeSts(lambda: NOW, faults=[ClientError(answer, "GetSessionToken")])

    with pytest.raises(NoCredentials, match=r"the profile 'bench' \(InvalidClientTokenId\)") as caught:
        source_of(sts.session_for, lambda: NOW).current()

    assert not caught.value.is_temporary
    assert "canary" not in f"{caught.value}{caught.value.__cause__}"


def test_session_credentials_are_passed_on_as_they_are() -> None:
    """They end by themselves; when, nobody says, so they are looked at again soon: their owner may replace them."""
    clock = Clock()
    held = [Credentials("ASIA7", "canary-session-secret", "canary-token")]
    source = source_of(lambda profile: session_with(held[0])(profile), clock)

    first = source.current()
    held[0] = Credentials("ASIA8", "canary-session-secret", "canary-token")
    clock.forward(minutes=0.5)
    same = source.current()
    clock.forward(minutes=0.6)

    assert ["ASIA7", "ASIA7", "ASIA8"] == [first.access_key_id, same.access_key_id, source.current().access_key_id]
    assert NOW + timedelta(minutes=30) == first.expires_at


def test_what_renews_itself_is_renewed_by_botocore() -> None:
    """Their own end is passed on, and the session is kept, so that no role is assumed anew."""
    clock = Clock(datetime.now(UTC))
    end = clock.now + timedelta(minutes=40)
    sessions: list[str | None] = []

    def session_for(profile: str | None) -> Any:
        sessions.append(profile)
        return session_with(
            RefreshableCredentials("ASIA9", "canary-s", "canary-t", expiry_time=end, refresh_using=dict, method="sso")
        )(profile)

    source = source_of(session_for, clock)
    ends = [source.current().expires_at]
    clock.forward(minutes=5)
    ends.append(source.current().expires_at)

    assert [end, end] == ends
    assert ["bench"] == sessions


def test_a_profile_without_credentials_says_what_to_do() -> None:
    """The words are those of the preflight."""

    def nobody(profile: str | None) -> Any:
        raise AwsCredentialsMissing("the AWS profile 'bench' does not exist", "Name another.")

    with pytest.raises(NoCredentials, match=r"the AWS profile .bench. does not exist\. Name another\."):
        source_of(nobody, lambda: NOW).current()


# --- in a batch ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FakeLender:
    """Lends a token for each rollout, unless it has none."""

    refusal: NoCredentials | None = None
    lent_now: int = 0
    lent_ever: int = 0

    def lent(self) -> Any:
        from contextlib import asynccontextmanager

        @asynccontextmanager
        async def lend() -> Any:
            await anyio.lowlevel.checkpoint()
            if self.refusal is not None:
                raise self.refusal
            self.lent_now += 1
            self.lent_ever += 1
            try:
                yield Loan("http://127.0.0.1:1/credentials", SecretStr(f"canary-loan-{self.lent_ever}"))
            finally:
                self.lent_now -= 1

        return lend()


def play(lender: FakeLender, tmp_path: Path, provider: str) -> tuple[int, FakeWorld, BatchDir]:
    world = FakeWorld(aws=lender)
    prepared = prepare(
        tmp_path,
        provider=provider,
        credentials={"openai": SecretStr("canary-openai-key")},
        choice={"endpoint": "https://example.invalid/v1", "region": "eu-west-1", "profile_name": "a-profile"},
    )
    batch_dir = BatchDir(tmp_path / "out")

    async def work() -> int:
        return await execute(
            prepared,
            batch_dir,
            rerun_of=None,
            console=quiet_console(),
            ambient=virtual_ambient(),
            equipment=world.equipment(),
        )

    return in_virtual_time(work), world, batch_dir


@pytest.mark.parametrize("provider", ["mantle", "bedrock"])
def test_the_pilot_of_an_aws_model_holds_a_token_of_its_own_as_its_one_secret(tmp_path: Path, provider: str) -> None:
    """Beside its broker token; the address stands in its spec, and the loan is over with its rollout."""
    lender = FakeLender()

    code, world, _ = play(lender, tmp_path, provider)

    keys = [secrets.provider_key for secrets in world.secrets.values()]
    assert (0, 0) == (code, lender.lent_now)
    assert {"canary-loan-1", "canary-loan-2"} == {key.get_secret_value() for key in keys if key is not None}
    assert {("http://127.0.0.1:1/credentials", "eu-west-1", "https://example.invalid/v1", "a-profile")} == {
        (spec.choice.credentials_url, spec.choice.region, spec.choice.endpoint, spec.choice.profile)
        for spec in world.specs
    }


def test_the_pilot_of_another_model_gets_its_key_and_no_address(tmp_path: Path) -> None:
    """No loan is made for it."""
    lender = FakeLender()

    _, world, _ = play(lender, tmp_path, "openai")

    assert 0 == lender.lent_ever
    assert {"canary-openai-key"} == {
        secrets.provider_key.get_secret_value() for secrets in world.secrets.values() if secrets.provider_key
    }
    assert {None} == {spec.choice.credentials_url for spec in world.specs}


def test_a_rollout_without_credentials_is_void_and_says_what_to_do(tmp_path: Path) -> None:
    """Cause `provider_auth`; no pilot starts, so nothing is asked in vain."""
    code, world, batch_dir = play(FakeLender(EXPIRED), tmp_path, "bedrock")

    result = read_result(batch_dir, "r-0")
    assert 1 == code
    assert [] == world.played
    assert (Outcome.VOID, Cause.PROVIDER_AUTH, EndedBy.PROVIDER_REFUSED) == (
        result.outcome,
        result.cause,
        result.ended_by,
    )
    assert "the login is over. Log in again." == read_state(batch_dir).rollouts[0].cause_detail
