"""The simulated providers are as strict as the real ones, where the real ones' behaviour is written down."""

from __future__ import annotations

import copy
import http.client
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import orjson
import pytest

from tests.fakes import batch, click
from tests.providers import faults, players
from tests.providers.accounts import Used
from tests.providers.broken import BROKEN
from tests.providers.faults import WIRE
from tests.providers.http import Request
from tests.providers.sending import NOW, headers_for, recorded_request, send, send_case, signed
from tests.providers.sigv4 import AwsSession, signature_of
from tests.providers.simulator import PROVIDERS, Simulator

# The simulator itself: what stands on it is tested elsewhere.
pytestmark = pytest.mark.slow

REQUESTS = sorted(f"{path.parent.name}/{path.name}" for path in WIRE.glob("*/request_*.json"))
SCRIPT = players.script([[click()], [click(30, 40)]], thinking="Where is the line tool?")
FIRST = {
    "openai": "openai/request_first_turn.json",
    "openrouter": "openrouter/request_first_turn_claude.json",
    "anthropic": "anthropic/request_first_turn.json",
    "fireworks": "fireworks/request_first_turn.json",
    "mantle": "mantle/request_first_turn_chat.json",
    "bedrock": "bedrock/request_first_turn.json",
}


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator(SCRIPT, utc_now=lambda: NOW) as simulator:
        yield simulator


@pytest.mark.parametrize("file", [file for file in REQUESTS if "service_quota" not in file])
def test_every_recorded_request_passes(simulator: Simulator, file: str) -> None:
    """A rule that refuses what the vendors take would make the adapters wrong."""
    got = send_case(simulator, file.partition("/")[0], recorded_request(file))

    assert (200, []) == (got.status, simulator.refused), got.content[:400]


def test_signatures_equal_the_published_vectors() -> None:
    """The check is an implementation of its own, so it is held against fixed results."""
    vectors = orjson.loads((WIRE / "sigv4_vectors.json").read_bytes())
    for vector in vectors["vectors"]:
        host, _, path = vector["url"].removeprefix("https://").partition("/")
        names = vector["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        line = next(line for line in vector["canonical_request"].splitlines()[::-1])
        headers = {**vector["headers"], "host": host, "x-amz-date": vector["amz_date"], "x-amz-content-sha256": line}
        if vector["session_token"]:
            headers["x-amz-security-token"] = vector["session_token"]
        body = vector["body"].encode()
        request = Request("mantle", vector["method"], f"/{path}", "", headers, body, len(body))
        scope = (vector["amz_date"][:8], vector["region"], vector["service"])
        made = signature_of(
            request, signed=names, stamped=vector["amz_date"], scope=scope, secret_key=vectors["secret_key"]
        )

        assert vector["authorization"].partition("Signature=")[2] == made, vector["name"]


@pytest.mark.parametrize(("what", "file", "mend", "says"), BROKEN, ids=[row[0] for row in BROKEN])
def test_what_a_vendor_refuses_is_refused(
    simulator: Simulator, what: str, file: str, mend: Callable[[dict[str, Any]], Any], says: str
) -> None:
    """A simulator that lets these pass proves nothing about the adapters."""
    case = copy.deepcopy(recorded_request(file))
    mend(case)
    got = send_case(simulator, file.partition("/")[0], case)

    assert got.status in (400, 404), what
    assert says in simulator.refused[0].refusal
    assert [] == simulator.account.lines


@pytest.mark.parametrize("provider", ["openai", "openrouter", "anthropic", "fireworks"])
def test_a_wrong_key_is_refused(simulator: Simulator, provider: str) -> None:
    """Each provider knows its own key and no other."""
    case = recorded_request(FIRST[provider])
    simulator.keys[provider] = "another"
    headers = headers_for(simulator, provider, case, b"{}")
    simulator.keys[provider] = "the right one"

    assert 401 == send(simulator, provider, "POST", case["path"], headers, b"{}").status


def test_every_flaw_of_a_signature_is_refused(simulator: Simulator) -> None:
    """Another secret, another body, an old date, an unsigned header, an expired session."""
    case = recorded_request(FIRST["mantle"])
    body = orjson.dumps(case["body"])
    bare = {"content-type": "application/json", "host": simulator.endpoints["mantle"].removeprefix("http://")}

    def says(headers: dict[str, str], body: bytes = body) -> tuple[int, str]:
        got = send(simulator, "mantle", "POST", case["path"], headers, body)
        return got.status, got.headers.get("x-amzn-errortype", "")

    def sign(**options: Any) -> dict[str, str]:
        return signed("mantle", "POST", case["path"], bare, body, **options)

    invalid = (403, "InvalidSignatureException")

    assert (200, "") == says(sign())
    assert invalid == says(sign(secret_key="another"))
    assert invalid == says(sign(), body + b" ")
    assert invalid == says(sign(at=NOW - timedelta(minutes=6)))
    assert invalid == says({**sign(), "x-amz-extra": "unsigned"})
    assert (403, "UnrecognizedClientException") == says(sign(token="unknown"))
    assert (403, "MissingAuthenticationTokenException") == says(bare)
    simulator.aws.sessions = [AwsSession("AKIDEXAMPLE", "example-secret-key", "EXAMPLESESSIONTOKEN==", NOW)]
    assert (403, "ExpiredTokenException") == says(sign())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_body_over_the_limit_is_refused_in_the_vendors_way(simulator: Simulator, provider: str) -> None:
    """413 as JSON or HTML, and Mantle's 400 about the body's length."""
    simulator.body_bytes_max[provider] = 1000
    got = send_case(simulator, provider, recorded_request(FIRST[provider]))

    assert (400 if provider == "mantle" else 413) == got.status
    assert ("text/html" if provider == "anthropic" else "application/json") == got.headers["content-type"]


def test_the_same_conversation_gets_the_same_answer_and_is_charged_twice(simulator: Simulator) -> None:
    """A turn that is sent again after a lost answer must not move the script on."""
    case = recorded_request(FIRST["openai"])
    answers = [send_case(simulator, "openai", case).body["output"] for _ in range(2)]

    assert answers[0] == answers[1]
    assert 2 == len(simulator.account.lines)


def test_an_implicit_cache_reads_the_longest_known_prefix() -> None:
    """Usage is believable only if it follows from what was really sent before."""
    with Simulator(SCRIPT, utc_now=lambda: NOW) as simulator:
        first = recorded_request("openai/request_first_turn.json")
        first["body"]["instructions"] = "Draw well. " * 800
        # The list that grows comes last, as in our own requests.
        first["body"]["input"] = first["body"].pop("input")
        send_case(simulator, "openai", first)
        later = copy.deepcopy(first)
        later["body"]["input"][0]["content"].append({"type": "input_text", "text": "more " * 100})
        usage = send_case(simulator, "openai", later).body["usage"]

        before, after = simulator.account.of()
        assert 0 == before.read
        assert before.input_total // 128 * 128 == after.read
        assert (after.input_total, after.read) == (
            usage["input_tokens"],
            usage["input_tokens_details"]["cached_tokens"],
        )
        assert [None, True] == [seen.extends for seen in simulator.turns]


def _anthropic(turns: list[list[dict[str, Any]]], *, model: str = "claude-opus-5") -> dict[str, Any]:
    case = recorded_request("anthropic/request_first_turn.json")
    case["body"]["model"] = model
    case["body"]["system"][0]["text"] = "Draw well. " * 800
    for content in turns:
        call = next(block for block in content if block["type"] == "tool_use")
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "done"}
        case["body"]["messages"] += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": [result, {"type": "text", "text": "The desktop now."}]},
        ]
    return case


def test_marked_prefixes_are_written_once_and_read_afterwards(simulator: Simulator) -> None:
    """Anthropic bills writes at breakpoints, and its counts are disjoint."""
    content = send_case(simulator, "anthropic", _anthropic([])).body["content"]
    usage = send_case(simulator, "anthropic", _anthropic([content])).body["usage"]

    first, second = simulator.account.of()
    assert (0, 0) == (first.read, first.uncached)
    assert first.written == second.read
    assert second.read == usage["cache_read_input_tokens"]
    assert second.written == usage["cache_creation_input_tokens"]


def test_thinking_is_bound_to_the_conversation_before_it(simulator: Simulator) -> None:
    """Newest models refuse thinking once anything before it has changed."""

    def case(content: list[dict[str, Any]], text: str) -> dict[str, Any]:
        case = _anthropic([content] if content else [], model="claude-opus-5-5")
        case["body"]["tool_choice"] = {"type": "auto"}
        case["body"]["messages"][0]["content"][0]["text"] = text
        return case

    content = send_case(simulator, "anthropic", case([], "Draw.")).body["content"]

    assert "thinking" == content[0]["type"]
    assert 200 == send_case(simulator, "anthropic", case(content, "Draw.")).status
    assert 400 == send_case(simulator, "anthropic", case(content, "Draw!")).status
    assert 200 == send_case(simulator, "anthropic", case(content[1:], "Draw!")).status


def test_the_server_compacts_beyond_its_trigger(simulator: Simulator) -> None:
    """The block replaces all before it, its run is in the iterations only, and a failed one changes nothing."""
    simulator.answering.failed_compactions = 1
    case = _anthropic([])
    case["body"]["system"][0]["text"] = "Draw."
    case["body"]["messages"][0]["content"][0]["text"] = "long " * 150_000
    failed = send_case(simulator, "anthropic", case).body
    simulator.player = players.script([[click(1, 1)]] * 3)
    case["body"]["messages"][0]["content"][0]["text"] = "longer " * 120_000
    done = send_case(simulator, "anthropic", case).body

    assert {"type": "compaction", "content": None, "encrypted_content": None} == failed["content"][0]
    assert failed["usage"]["iterations"][-1]["cache_read_input_tokens"] > 150_000
    assert done["content"][0]["content"]
    assert ["compaction", "message"] == [run["type"] for run in done["usage"]["iterations"]]
    assert done["usage"]["input_tokens"] + done["usage"]["cache_creation_input_tokens"] < 5_000
    assert 4 == len(simulator.account.lines)


def test_faults_befall_valid_turns_in_order(simulator: Simulator) -> None:
    """Recorded answers come first, and the good answer after them is the script's first."""
    case = recorded_request(FIRST["openai"])
    simulator.inject("openai", [faults.recorded("openai/err_500.json"), faults.lie({"input_tokens": -1})])
    answers = [send_case(simulator, "openai", case) for _ in range(3)]

    assert [500, 200, 200] == [got.status for got in answers]
    assert {"input_tokens": -1} == answers[1].body["usage"]
    assert 0 == simulator.faults_left("openai")
    assert [None, 0, 0] == [seen.number for seen in simulator.turns]


@pytest.mark.parametrize(
    "fault", [faults.dropped(before_body=True), faults.dropped(), faults.lost(), faults.cut(20)], ids=lambda f: f.kind
)
def test_connections_break_where_they_should(simulator: Simulator, fault: faults.Fault) -> None:
    """Only what was answered, or lost on its way, is charged."""
    simulator.inject("openai", [fault])
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        send_case(simulator, "openai", recorded_request(FIRST["openai"]))

    assert (1 if fault.kind in ("lost", "cut") else 0) == len(simulator.account.lines)


def test_a_slow_answer_waits_for_its_release(simulator: Simulator) -> None:
    """Tests hold an answer back for as long as they need, without a clock."""
    simulator.inject("openai", [faults.slow()])
    got: list[int] = []
    case = recorded_request(FIRST["openai"])
    thread = threading.Thread(target=lambda: got.append(send_case(simulator, "openai", case).status))
    thread.start()
    simulator.wait_for_held()

    assert [] == got
    simulator.release()
    thread.join(30)
    assert [200] == got


@pytest.mark.parametrize("shape", ["two_calls", "text", "refusal", "empty", "cut", "broken", "filtered"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_shape_of_answer_is_made(provider: str, shape: players.Shape) -> None:
    """Players can misbehave in every vendor's words."""
    play = players.Play(batch(click()), shape=shape, text="Done." if shape == "text" else "")
    with Simulator(players.sequence([play]), utc_now=lambda: NOW) as simulator:
        got = send_case(simulator, provider, recorded_request(FIRST[provider]))

    assert 200 == got.status


def test_lists_have_pages(simulator: Simulator) -> None:
    """Catalog readers have to follow them."""
    simulator.catalogs.page_size = 5
    ids: list[str] = []
    target = "/v1/models?limit=1000"
    case = recorded_request("anthropic/request_list_models.json")
    while target:
        page = send_case(simulator, "anthropic", {**case, "path": target}).body
        ids += [entry["id"] for entry in page["data"]]
        target = f"/v1/models?limit=1000&after_id={page['last_id']}" if page["has_more"] else ""

    assert len(ids) == len(set(ids)) > 5
    assert "claude-opus-5" in ids


def test_the_bill_is_priced_by_hand(simulator: Simulator) -> None:
    """Rates of the recorded prices, and all of a long request at its higher rates."""
    account = simulator.account

    assert "0.0154008" == f"{account.price('openai', 'gpt-5.6-sol', Used(228, 3072, 1900, 0, 188)):f}".rstrip("0")
    assert "0.492" == f"{account.price('openai', 'gpt-5.6-sol', Used(10_000, 250_000, 20_000, 0, 400)):f}".rstrip("0")
    assert account.price("openai", "gpt-unknown", Used(1)) is None
