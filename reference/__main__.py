"""Write the pages of ``docs/reference``."""

from pathlib import Path
from typing import Final

from reference.pages import ON_A_DATABASE, PAGES

_TARGET: Final = Path(__file__).parents[1] / "docs" / "reference"


def main() -> None:
    """Write those that changed, and say which."""
    for name, render in (PAGES | ON_A_DATABASE).items():
        path, text = _TARGET / name, render()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: docs/reference/{name}")


if __name__ == "__main__":
    main()
