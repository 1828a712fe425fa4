"""The aggregator: ingest appends to the ledger, merge applies what was committed, query answers from both.

Serve turns requests into questions, and streams what happens. Only `aggregator.py` joins the parts.
"""
