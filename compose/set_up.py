"""Brings a deployment's tables, groups, roles and policies up to date; safe to repeat. Run by the service `set-up`.

    python set_up.py GROUP...

Reads OUTBOX_DATABASE_URL and OUTBOX_RABBITMQ_URL, as every command does, OUTBOX_RELAY_DATABASE_URL for the role that
the relay is to have, and RABBITMQ_API, where the broker's HTTP API answers to the same login.
"""

import base64
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import sql

RELAY_GRANTS = Path(__file__).with_name("relay.sql")
POLICIES = Path(__file__).with_name("policies.json")
MADE_BY_MIGRATION = "default"


def outbox(*arguments: str) -> str:
    """Run the command and return what it printed; its failure is ours, in its own words."""
    done = subprocess.run(["outbox", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def make_relay(owner_url: str, relay_url: str) -> None:
    """Let the role of *relay_url* be, with its password, and do what the relay has to and nothing else."""
    login = urlsplit(relay_url)
    role = sql.Identifier(unquote(login.username or ""))
    with psycopg.connect(owner_url) as owner:
        there = owner.execute("SELECT FROM pg_roles WHERE rolname = %s", (unquote(login.username or ""),)).fetchone()
        change = sql.SQL("CREATE ROLE {}" if there is None else "ALTER ROLE {}").format(role)
        password = sql.Literal(unquote(login.password or ""))
        owner.execute(change + sql.SQL(" LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD {}").format(password))
        owner.execute(RELAY_GRANTS.read_bytes())


def set_policies(api: str, broker_url: str) -> None:
    """Let the broker have the policies of the file; it keeps whatever else it has."""
    login = urlsplit(broker_url)
    token = base64.b64encode(f"{unquote(login.username or '')}:{unquote(login.password or '')}".encode()).decode()
    headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{api}/api/definitions", POLICIES.read_bytes(), headers, method="POST")
    # No proxy: the address is one of this network.
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30):
            return
    except OSError as error:  # a refusal by HTTP too
        sys.exit(f"set_up: want the policies taken by {api}, got {error}; its user needs the tag administrator")


def main(groups: list[str]) -> None:
    """Do all of it, or end with what failed."""
    print(outbox("migrate"), end="")
    known = {group["name"] for group in json.loads(outbox("group", "list", "--json"))}
    for group in groups:
        if group not in known:
            print(outbox("group", "add", group), end="")
    if MADE_BY_MIGRATION in known and MADE_BY_MIGRATION not in groups:
        # Nobody would read it, and its queues would only grow.
        print(outbox("group", "remove", MADE_BY_MIGRATION, "--yes"), end="")
    make_relay(os.environ["OUTBOX_DATABASE_URL"], os.environ["OUTBOX_RELAY_DATABASE_URL"])
    print("relay's role set")
    set_policies(os.environ["RABBITMQ_API"], os.environ["OUTBOX_RABBITMQ_URL"])
    print("policies set")


if __name__ == "__main__":
    main(sys.argv[1:])
