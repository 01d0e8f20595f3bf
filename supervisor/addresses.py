"""What is wrong with a base URL that an operator wrote, and which hosts are this machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def url_problem(url: str) -> str | None:
    """Why a provider may not be asked at this URL, or null. The URL is not quoted: it may hold a secret."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("http", "https") or not host or any(char.isspace() for char in url):
        return "is not an http or https URL"
    if parts.username is not None or parts.password is not None:
        return "carries a user name or password"
    if "?" in url or "#" in url:
        return "carries a query or fragment"
    if parts.scheme == "http" and not is_loopback(host):
        return "is http on an address that is not loopback"
    return None


def is_loopback(host: str) -> bool:
    """True for `localhost` and for addresses of the loopback interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
