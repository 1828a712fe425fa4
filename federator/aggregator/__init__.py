"""The aggregator: ingest appends to the ledger, merge applies what was committed, serve reads merge.

Only `aggregator.py` joins the parts; nothing else imports two of them.
"""
