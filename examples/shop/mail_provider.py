"""Stands in for a mail provider, so that the example needs no account: it keeps mails in memory and shows them.

uvicorn mail_provider:app --port 8001
"""

from typing import Annotated

from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel


class Mail(BaseModel):
    """What is sent."""

    to: str
    subject: str


app = FastAPI(title="mail provider")
sent: dict[str, Mail] = {}
tokens: dict[str, int] = {}


@app.put("/mails/{key}")
async def send(key: str, mail: Mail, fencing_token: Annotated[int, Header()]) -> Mail:
    """Send *mail* once per key; refuse a process that a later one has taken over from."""
    if fencing_token < tokens.get(key, 0):
        raise HTTPException(409, "a later attempt has been here")
    tokens[key] = fencing_token
    return sent.setdefault(key, mail)


@app.get("/mails/{key}")
async def mail(key: str) -> Mail:
    """The mail of that key."""
    if key not in sent:
        raise HTTPException(404, "no such mail")
    return sent[key]


@app.get("/mails")
async def mails() -> list[Mail]:
    """All that were sent."""
    return list(sent.values())
