"""Serve: answers questions over all member clusters from the merged view and the ledger's history."""
