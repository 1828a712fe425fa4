"""Programs in Go that stand beside federator: what people would take instead."""
