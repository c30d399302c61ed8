"""The `outbox` command and the demo: the only place that imports both relay and consumer."""
