"""What went wrong on the way to a vendor, in words of our own: those of the libraries quote addresses and headers."""

from __future__ import annotations

import requests


def reason_of(error: Exception) -> str:
    """Why a request had no answer that can be used, without anything that was sent."""
    match error:
        case requests.exceptions.SSLError():
            return "its certificate was not accepted"
        case requests.Timeout():
            return "it did not answer in time"
        case requests.exceptions.ChunkedEncodingError() | requests.exceptions.ContentDecodingError():
            return "its answer was cut off"
        case requests.ConnectionError():
            return "no connection"
        case _:
            return type(error).__name__
