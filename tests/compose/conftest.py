"""The deployment of compose.yaml without Docker: its images' files, its servers' settings, its commands as its user."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.building import Builder
from tests.compose.deployment import COMPOSE, ROOT
from tests.compose.servers import Servers
from tests.compose.stack import Stack
from tests.support.services import Missing, Report, is_ci


@pytest.fixture(scope="session")
def builder() -> Iterator[Builder]:
    """Follows stages of the Dockerfile, each once."""
    with tempfile.TemporaryDirectory(prefix="fairpost-image-") as where:
        Path(where).chmod(0o755)  # the image's user is to read it
        yield Builder(COMPOSE / "Dockerfile", context=ROOT, where=Path(where))


@pytest.fixture(scope="session")
def servers(report: Report) -> Iterator[Servers]:
    """PostgreSQL and RabbitMQ with the settings of this deployment, on ports of their own."""
    try:
        found = Servers.started()
    except Missing as error:
        report.missing["RabbitMQ, as compose.yaml has it"] = str(error)
        if is_ci():
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    yield found
    found.close()


@pytest.fixture(scope="session")
def stack(builder: Builder, servers: Servers) -> Iterator[Stack]:
    """All of it, set up and running."""
    started = Stack(builder, servers)
    try:
        started.start()
        yield started
    finally:
        started.close()
