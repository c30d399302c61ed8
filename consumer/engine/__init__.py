"""What runs: lanes, slots and attempts, and the jobs beside them."""
