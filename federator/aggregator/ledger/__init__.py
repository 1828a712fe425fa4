"""The ledger: one durable order over all changes of all clusters; see `ledger` for its promises."""
