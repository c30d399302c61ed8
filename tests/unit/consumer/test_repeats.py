"""Which alerts are told, and which are held back."""

from consumer import Alert, AlertKind
from consumer.decide.repeats import Repeats


def alert(kind: AlertKind = AlertKind.POISON, tenant: str | None = "acme", count: int = 1) -> Alert:
    return Alert(kind=kind, group="billing", text="it happened", tenant=tenant, count=count)


def test_what_is_new_is_told_at_once_and_its_repeats_together_when_the_time_is_over() -> None:
    repeats = Repeats(every_s=300)

    told = [repeats.tell(alert(), now) for now in (0, 1, 250)]

    assert told == [alert(), None, None]
    assert repeats.due(299) == []
    assert repeats.due(300) == [alert(count=2)]
    assert repeats.tell(alert(), 301) is None
    assert repeats.due(600) == [alert()]


def test_what_did_not_happen_again_is_not_told_again_and_is_new_later() -> None:
    repeats = Repeats(every_s=300)
    repeats.tell(alert(), 0)

    assert repeats.due(300) == []
    assert repeats.tell(alert(), 301) == alert()


def test_another_tenant_or_kind_is_told_by_itself() -> None:
    repeats = Repeats()
    repeats.tell(alert(), 0)

    assert repeats.tell(alert(tenant="zeta"), 0) == alert(tenant="zeta")
    assert repeats.tell(alert(AlertKind.BREAKER_OPENED), 0) == alert(AlertKind.BREAKER_OPENED)


def test_what_goes_wrong_for_thousands_of_tenants_is_told_for_a_few_and_then_for_all() -> None:
    repeats = Repeats(every_s=300, per_minute_max=5)

    told = [repeats.tell(alert(tenant=f"t{number}"), 0) for number in range(10_000)]

    assert [one.tenant for one in told if one is not None] == ["t0", "t1", "t2", "t3", "t4", None]
    assert repeats.due(300) == [alert(tenant=None, count=10_000 - 6)]


def test_the_number_of_tenants_makes_it_remember_no_more() -> None:
    repeats = Repeats(every_s=300, per_minute_max=5)

    for minute in range(60):
        for number in range(100):
            repeats.tell(alert(tenant=f"{minute}.{number}"), minute * 60.0)

    assert len(repeats._told) <= 5 * 6 + 1
