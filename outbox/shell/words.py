"""Words that go with a number."""


def counted(number: int, noun: str) -> str:
    """*number* of *noun*, in the plural if it is not one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"
