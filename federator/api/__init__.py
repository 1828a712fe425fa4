"""The vocabulary: clusters, resource types, keys, objects, deltas, cursors and selectors. No I/O."""
