"""What a process tells about itself: logs, Prometheus metrics and health."""
