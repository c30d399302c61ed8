"""Tables: whole rows where they fit, no broken word where they do not."""

from rich.console import Console

from outbox.shell.console import wide_table


def _lines(width: int) -> list[str]:
    made = wide_table("fingerprint", "letters", "why", right={"letters"})
    made.add_row("62b45f85aaa0cabb", "1,200", "KeyError")
    made.add_row("0a1b2c3d4e5f6071", "3", "a reason of several words")
    console = Console(width=width)
    with console.capture() as captured:
        console.print(made)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_wide_table_folds_its_last_column_alone() -> None:
    assert _lines(80)[2] == "0a1b2c3d4e5f6071        3  a reason of several words"
    assert _lines(35) == [
        "fingerprint       letters  why",
        "62b45f85aaa0cabb    1,200  KeyError",
        "0a1b2c3d4e5f6071        3  a reason",
        "                           of",
        "                           several",
        "                           words",
    ]


def test_a_wide_table_has_a_line_per_column_where_a_word_would_be_broken() -> None:
    assert _lines(34) == [
        "fingerprint  62b45f85aaa0cabb",
        "letters      1,200",
        "why          KeyError",
        "",
        "fingerprint  0a1b2c3d4e5f6071",
        "letters      3",
        "why          a reason of several",
        "             words",
    ]
