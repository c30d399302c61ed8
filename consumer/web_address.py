"""Where an alert may be POSTed to."""

from typing import Final
from urllib.parse import SplitResult, urlsplit

PORTS: Final = {"http": 80, "https": 443}


def check_url(url: str) -> SplitResult:
    """Return *url* in its parts. Raises ValueError, without repeating it: its path is often a secret."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not (is_good and url.isascii() and url.isprintable() and " " not in url):
        raise ValueError("want http://host/path or https://host/path, got something else")
    if parts.username is not None or parts.fragment:
        raise ValueError("want an address without a user and without #, got one with")
    return parts
