"""A broker's connection in a thread of its own, whatever the broker: its engine's side, and what the two say."""
