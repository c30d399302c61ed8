"""``python -m consumer``: how a consumer's process starts its own kind."""

from consumer.cli import main

main()
