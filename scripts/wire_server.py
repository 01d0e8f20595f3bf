"""A model provider for measurements: it drops every body and answers each request with one click, at once.

    python scripts/wire_server.py [--hold N]

It speaks all request formats and hands out AWS credentials. It prints its port, and ends with its stdin. From the
`N`-th request of a connection on, `--hold` prints a line when the request begins to arrive, and does not answer.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading

ACTIONS = {"actions": [{"type": "click", "x": 700, "y": 500, "button": "left", "clicks": 1, "modifiers": []}]}
TOOL = "computer_action"
# The id is another one for every answer, as everywhere; formats that need one get it here.
ANSWERS = {
    "responses": {
        "id": "resp_NUMBER",
        "object": "response",
        "status": "completed",
        "error": None,
        "output": [
            {
                "type": "function_call",
                "id": "fc_NUMBER",
                "call_id": "call_NUMBER",
                "name": TOOL,
                "arguments": json.dumps(ACTIONS),
                "status": "completed",
            }
        ],
        "usage": {
            "input_tokens": 5000,
            "input_tokens_details": {"cached_tokens": 4000},
            "output_tokens": 50,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 5050,
        },
    },
    "completions": {
        "id": "chat_NUMBER",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "call_NUMBER",
                            "type": "function",
                            "function": {"name": TOOL, "arguments": json.dumps(ACTIONS)},
                        }
                    ],
                },
            }
        ],
        "usage": {"prompt_tokens": 5000, "completion_tokens": 50, "total_tokens": 5050},
    },
    "messages": {
        "id": "msg_NUMBER",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "toolu_NUMBER", "name": TOOL, "input": ACTIONS}],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1000, "cache_read_input_tokens": 4000, "output_tokens": 50},
    },
    "converse": {
        "output": {
            "message": {
                "role": "assistant",
                "content": [{"toolUse": {"toolUseId": "tooluse_NUMBER", "name": TOOL, "input": ACTIONS}}],
            }
        },
        "stopReason": "tool_use",
        "usage": {"inputTokens": 5000, "outputTokens": 50, "totalTokens": 5050},
    },
    "credentials": {
        "AccessKeyId": "AKIDEXAMPLE",
        "SecretAccessKey": "bench-secret-key",
        "Token": "bench-session-token",
        "Expiration": "2099-01-01T00:00:00Z",
    },
}


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hold", type=int, default=0)
    hold = parser.parse_args().hold
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_talk, args=(connection, hold), daemon=True).start()


def _talk(connection: socket.socket, hold: int) -> None:
    dropped = bytearray(1 << 20)
    received = b""
    number = 0
    try:
        while True:
            while b"\r\n\r\n" not in received:
                more = connection.recv(65536)
                if not more:
                    return
                received += more
            head, _, received = received.partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            path = lines[0].split(b" ")[1].decode()
            number += path != "/credentials"
            if hold and number >= hold:
                print(number, flush=True)
                threading.Event().wait()
            length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
            left = length - len(received)
            while left > 0:
                left -= connection.recv_into(dropped, min(left, len(dropped))) or length
            received = b""
            content = json.dumps(ANSWERS[path.rpartition("/")[2]]).replace("NUMBER", str(number)).encode()
            start = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            connection.sendall(start.encode() + content)
    except OSError:
        pass
    finally:
        connection.close()


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
