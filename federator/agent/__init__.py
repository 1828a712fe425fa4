"""The agent: informers on one cluster, whose deltas it pushes to the aggregator."""
