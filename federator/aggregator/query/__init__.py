"""Query: answers questions from the merged view and, for the past and for bodies, from the ledger.

Nothing here knows gRPC: `federator.aggregator.serve` turns requests into calls and results into messages.
"""
