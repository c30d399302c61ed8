"""What runs: tenures that read, publish, settle and persist, and the janitor beside them."""
