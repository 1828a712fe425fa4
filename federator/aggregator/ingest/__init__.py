"""Ingest: takes what agents push and appends it to the ledger."""
