"""Passwords in addresses: how an address may be shown."""

import re
from typing import Final

# Up to the last @ before the path's end: a password may itself hold an @, and showing too little is the safe mistake.
_USERINFO: Final = re.compile(r"(://[^:/@?\s]*):[^\s]*@")
_QUERY: Final = re.compile(r"([?&](?:password|sslpassword|passfile)=)[^&\s]*", re.IGNORECASE)
_WEB: Final = re.compile(r"\A(https?://[^/?#\s]*)[/?#].*", re.IGNORECASE | re.DOTALL)
_CONNINFO: Final = re.compile(r"(\b(?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)", re.IGNORECASE)


def shown_url(address: str) -> str:
    """*address*, a URL or a libpq ``key=value`` string, with ``***`` in place of every password.

    Of a web address only the host is shown: the rest is what lets one in.
    """
    return masked(_WEB.sub(r"\1/***", address))


def masked(text: str) -> str:
    """*text* with ``***`` in place of the password of every address in it."""
    if "://" in text:
        text = _QUERY.sub(r"\1***", _USERINFO.sub(r"\1:***@", text))
    return _CONNINFO.sub(r"\1***", text) if "password" in text.lower() else text
