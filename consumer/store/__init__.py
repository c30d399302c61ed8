"""What a group keeps in PostgreSQL: ledger, work rows, dead letters, key positions, leases."""
