"""All lists at once, side by side and within one deadline, whatever any of them does."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from supervisor.catalogs.entries import Ask, Catalog, CatalogError

DEADLINE_S: Final = 10.0


def read_catalogs(asks: Sequence[Ask], *, deadline_s: float = DEADLINE_S) -> dict[str, Catalog | CatalogError]:
    """The answer for each provider in `asks`: its list, or why there is none. Never raises.

    A guess without an answer is left out.
    """
    deadline = time.monotonic() + deadline_s
    answers: queue.SimpleQueue[tuple[str, Catalog | CatalogError]] = queue.SimpleQueue()
    for ask in asks:
        # A daemon: a resolver or a server that hangs must not keep the command from ending.
        threading.Thread(
            target=_answer, args=(ask, deadline, answers), name=f"list-{ask.provider}", daemon=True
        ).start()
    found: dict[str, Catalog | CatalogError] = {}
    while len(found) < len(asks):
        try:
            provider, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        found[provider] = answer
    for ask in asks:
        if ask.provider not in found:
            found[ask.provider] = _no_answer(ask, "it did not answer in time")
        if ask.is_guess and isinstance(found[ask.provider], CatalogError):
            del found[ask.provider]
    return found


def _answer(ask: Ask, deadline: float, answers: queue.SimpleQueue[tuple[str, Catalog | CatalogError]]) -> None:
    try:
        answer: Catalog | CatalogError = _catalog(ask, deadline)
    except CatalogError as error:
        answer = error
    # Whatever else goes wrong in one list, the others and the plan go on. The text of the error is left out, because
    # it may quote what was sent.
    except Exception as error:  # noqa: BLE001
        answer = _no_answer(ask, f"its answer cannot be read ({type(error).__name__})")
    answers.put((ask.provider, answer))


def _catalog(ask: Ask, deadline: float) -> Catalog:
    if ask.provider == "bedrock":
        from supervisor.catalogs.aws import bedrock_catalog

        return bedrock_catalog(ask, deadline)
    if ask.provider == "mantle":
        from supervisor.catalogs.aws import mantle_catalog

        return mantle_catalog(ask, deadline)
    from supervisor.catalogs.vendors import direct_catalog

    return direct_catalog(ask, deadline)


def _no_answer(ask: Ask, reason: str) -> CatalogError:
    from supervisor.catalogs.http import unreachable

    return unreachable(ask.provider, urlsplit(ask.url or "").hostname or ask.provider, reason)
