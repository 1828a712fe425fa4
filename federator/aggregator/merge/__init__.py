"""Merge: the present state of all clusters, indexed; it changes by committed ledger entries alone."""
