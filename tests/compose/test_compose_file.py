"""compose.yaml says nothing that Compose, our commands and our settings would not understand."""

import ast
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from pydantic import BaseModel

from consumer.settings import PREFIX as CONSUMER_PREFIX
from consumer.settings import ConsumerSettings
from outbox.shell.settings import load
from outbox_admin.settings import PREFIX as ADMIN_PREFIX
from outbox_admin.settings import AdminSettings
from relay.settings import PREFIX as RELAY_PREFIX
from relay.settings import RelaySettings
from tests.compose.deployment import (
    COMPOSE,
    ROOT,
    MissingVariable,
    Service,
    given,
    interpolated,
    raw,
    services,
    variables_in,
)
from tests.docs.commands import OURS, invocation_problems

SERVICES = services()
EVERY = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
BUILT = pytest.mark.parametrize(
    "service", [one for one in SERVICES.values() if one.image], ids=[one.name for one in SERVICES.values() if one.image]
)
#: A version to the last number, and no tag that is moved to the next one.
_PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+(\.\d+)?(-[a-z0-9.]+)?(@sha256:[0-9a-f]{64})?")
_SETTINGS: dict[str, tuple[type[BaseModel], str]] = {
    "outbox": (AdminSettings, ADMIN_PREFIX),
    "outbox-relay": (RelaySettings, RELAY_PREFIX),
    "outbox-consumer": (ConsumerSettings, CONSUMER_PREFIX),
}
#: What the images of others are told, by their own manuals.
_OTHERS_READ = {
    "postgres": {"POSTGRES_PASSWORD", "POSTGRES_DB"},
    "rabbitmq": {"RABBITMQ_DEFAULT_USER", "RABBITMQ_DEFAULT_PASS"},
}
_WAITED_FOR = {"service_healthy", "service_completed_successfully"}


def schema_problems(content: object) -> list[str]:
    schema = get_builtin_schema("vendor.compose-spec")
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(content)]


def test_it_is_a_compose_file() -> None:
    """Against the specification's own schema, variables put in."""
    content = interpolated(raw(), given())
    assert schema_problems(content) == []
    content["services"]["relay"]["helthcheck"] = {}
    assert schema_problems(content)


def test_every_variable_is_in_the_example_and_every_one_there_is_used() -> None:
    used = set(variables_in({key: value for key, value in raw().items() if not key.startswith("x-")}))
    assert set(given()) <= used
    assert used - set(given()) == {"SHOP_VERSION"}


@pytest.mark.parametrize("name", [name for name in given() if name.endswith("_PASSWORD")])
def test_without_a_password_nothing_starts(name: str) -> None:
    with pytest.raises(MissingVariable, match=name):
        services({**given(), name: ""})


def test_no_password_is_in_the_file_itself() -> None:
    text = (COMPOSE / "compose.yaml").read_text()
    assert "only-for-development" not in text
    assert re.findall(r"PASS\w*: (?!\$\{\w+:\?)", text) == []
    assert re.findall(r"://\w+:(?!\$\{\w+:\?)[^/\s]*@", text) == []


@EVERY
def test_its_image_is_one_version_and_stays_so(service: Service) -> None:
    image = service.content["image"]
    if service.image is None:
        assert _PINNED.fullmatch(image), image
    else:
        assert image == f"fairpost-{service.image.target}:dev"


@pytest.mark.parametrize("image", ["postgres", "postgres:latest", "postgres:18", "rabbitmq:management", "a/b:v3"])
def test_an_image_that_moves_is_not_taken_for_a_pinned_one(image: str) -> None:
    assert not _PINNED.fullmatch(image)


@BUILT
def test_its_command_is_one_that_its_program_understands(service: Service) -> None:
    program, *rest = service.command
    if program in OURS:
        assert invocation_problems([program, *rest], is_complete=True) == []
    elif program == "python":
        assert any(target == rest[0] for _, target, _ in service.mounts), rest
    else:
        problems_of = {"uvicorn": _uvicorn_problems, "alembic": _alembic_problems}[program]
        assert problems_of(rest) == []


def _uvicorn_problems(words: list[str]) -> list[str]:
    # The module, which the function of the same name hides.
    context = import_module("uvicorn.main").main.make_context("uvicorn", list(words))
    return _missing(context.params["app"])


def _alembic_problems(words: list[str]) -> list[str]:
    from alembic.config import CommandLine  # noqa: PLC0415 - one test's

    options = CommandLine().parser.parse_args(words)
    return [] if hasattr(options, "cmd") and (ROOT / "examples/shop/alembic.ini").exists() else [str(words)]


def _missing(app_name: str) -> list[str]:
    """A sentence unless the example has the module and the name in it."""
    module, _, name = app_name.partition(":")
    path = ROOT / "examples" / "shop" / f"{module}.py"
    if not path.exists():
        return [f"{app_name}: want {path}, got none"]
    assigned = {
        target.id
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return [] if name in assigned else [f"{app_name}: want {name} in {path}, got {sorted(assigned)}"]


def test_the_consumers_app_is_there() -> None:
    app_name = SERVICES["consumer"].command[2]
    assert _missing(app_name) == []
    assert _missing("billing:nobody")


@BUILT
def test_every_variable_is_one_that_its_program_reads(service: Service) -> None:
    ours = {name: value for name, value in service.environment.items() if name.startswith("OUTBOX_")}
    model, prefix = _SETTINGS.get(service.command[0], _SETTINGS["outbox"])
    if ours:
        load(model, prefix=prefix, environment=ours, directory=COMPOSE / "postgres")  # a folder without a .env
    others = service.content.get("environment", {}).keys() - ours.keys()
    assert others <= _read_by(service), others - _read_by(service)


def _read_by(service: Service) -> set[str]:
    """The variables that the code of the example, or what is mounted, reads."""
    ours = [source for source, _, _ in service.mounts if source.suffix == ".py"]
    example = (
        list((ROOT / "examples" / "shop").rglob("*.py")) if service.content["build"]["target"] == "example" else []
    )
    return set(re.findall(r"environ\[\"(\w+)\"\]", "".join(path.read_text() for path in (*ours, *example))))


@pytest.mark.parametrize("name", ["postgres", "rabbitmq"])
def test_an_image_of_others_is_told_what_its_manual_has(name: str) -> None:
    assert set(SERVICES[name].content["environment"]) == _OTHERS_READ[name]


def test_every_process_agrees_on_database_and_broker() -> None:
    def hosts(kind: str) -> set[str]:
        urls = [value for one in SERVICES.values() for value in one.environment.values() if value.startswith(kind)]
        return {url.rpartition("@")[2] for url in urls}

    assert hosts("postgresql://") == {f"postgres:5432/{SERVICES['postgres'].content['environment']['POSTGRES_DB']}"}
    assert hosts("amqp://") == {"rabbitmq:5672/%2F"}
    for host in ("postgres", "rabbitmq", "mail"):
        assert host in SERVICES


@EVERY
def test_what_it_sees_of_ours_exists_and_cannot_be_written_to(service: Service) -> None:
    for source, target, mode in service.mounts:
        assert source.exists(), source
        assert COMPOSE in source.parents, source
        assert mode == "ro", target


@EVERY
def test_what_it_waits_for_can_come_true(service: Service) -> None:
    for name, how in service.content.get("depends_on", {}).items():
        awaited, condition = SERVICES[name], how["condition"]
        assert condition in _WAITED_FOR
        if condition == "service_healthy":
            assert awaited.healthcheck, name
        else:
            assert awaited.content["restart"] == "no", name
        assert set(awaited.content.get("profiles", ())) <= set(service.content.get("profiles", ())), name


@EVERY
def test_nothing_but_loopback_is_published(service: Service) -> None:
    for port in service.content.get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port


@EVERY
def test_it_may_do_nothing_that_it_need_not(service: Service) -> None:
    content = service.content
    assert content["read_only"] is True
    assert content["cap_drop"] == ["ALL"]
    assert content["security_opt"] == ["no-new-privileges:true"]
    assert content["restart"] in {"unless-stopped", "no"}
    user, group = str(content["user"]).split(":")
    assert int(user) > 0
    assert int(group) >= 0
    assert {"cap_add", "privileged", "network_mode", "pid", "ipc"} & content.keys() == set()
    assert content["deploy"]["resources"]["limits"].keys() == {"cpus", "memory", "pids"}
    assert content["logging"]["options"].keys() == {"max-size", "max-file"}


@EVERY
def test_what_lasts_has_a_health_check(service: Service) -> None:
    is_lasting = service.content["restart"] == "unless-stopped"
    assert bool(service.healthcheck) == is_lasting


def test_volumes_outlive_containers() -> None:
    declared = set(raw()["volumes"])
    used = {
        volume.split(":")[0]
        for one in SERVICES.values()
        for volume in one.content.get("volumes", ())
        if not volume.startswith(".")
    }
    assert used == declared
    # Elsewhere the image of 18 would keep its data in a volume without a name.
    assert "postgres:/var/lib/postgresql" in SERVICES["postgres"].content["volumes"]
    assert SERVICES["rabbitmq"].content["hostname"] == "rabbitmq"
    assert SERVICES["rabbitmq"].content["ulimits"]["nofile"] == {"soft": 65536, "hard": 65536}


@pytest.mark.parametrize(
    ("name", "model"), [("relay", RelaySettings), ("consumer", ConsumerSettings)], ids=["relay", "consumer"]
)
def test_a_process_has_time_to_drain_before_it_is_killed(name: str, model: type[Any]) -> None:
    prefix = f"OUTBOX_{name.upper()}_"
    environment = {key: value for key, value in SERVICES[name].environment.items() if key.startswith("OUTBOX_")}
    drain_s = load(model, prefix=prefix, environment=environment, directory=COMPOSE / "postgres").drain_s
    assert int(SERVICES[name].content["stop_grace_period"].removesuffix("s")) >= drain_s + 15


@pytest.mark.parametrize("name", ["relay", "consumer"])
def test_health_is_asked_for_where_it_answers(name: str) -> None:
    port = SERVICES[name].environment[f"OUTBOX_{name.upper()}_HEALTH_PORT"]
    assert f"'127.0.0.1', {port}," in str(SERVICES[name].healthcheck)


def jobs() -> Iterable[tuple[str, str, int]]:
    """Each job of Prometheus, the service that it reads, and the port."""
    for job in yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]:
        for found in job.get("dns_sd_configs", ()):
            yield from ((job["job_name"], name, found["port"]) for name in found["names"])
        for found in job.get("static_configs", ()):
            for target in found["targets"]:
                yield job["job_name"], *_host_and_port(target)


def _host_and_port(target: str) -> tuple[str, int]:
    host, _, port = target.partition(":")
    return host, int(port)


def test_prometheus_reads_what_our_processes_serve() -> None:
    found = {job: (host, port) for job, host, port in jobs()}
    for name in ("relay", "consumer"):
        environment = SERVICES[name].environment
        assert found[f"outbox-{name}"] == (name, int(environment[f"OUTBOX_{name.upper()}_HEALTH_PORT"]))
        assert environment[f"OUTBOX_{name.upper()}_HEALTH_HOST"] == "0.0.0.0"
        assert "ports" not in SERVICES[name].content
    broker = (COMPOSE / "rabbitmq" / "rabbitmq.conf").read_text()
    assert found["rabbitmq"] == ("rabbitmq", int(re.findall(r"^prometheus\.tcp\.port = (\d+)$", broker, re.M)[0]))
    rules = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text())["rule_files"]
    mounted = {Path(target).name for _, target, _ in SERVICES["prometheus"].mounts}
    assert set(rules) <= mounted
