"""What performance claims rest on: each benchmark prints a ratio measured in one run."""
