"""What both ends of gRPC share: bodies, type conversions, status details, limits."""
