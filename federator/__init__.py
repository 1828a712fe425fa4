"""Federator: read many Kubernetes clusters as one.

The way of one change:

    kube-apiserver
      │  list and watch
      ▼
    agent        kube → cache: Reflector → DeltaFIFO → Indexer → outbox → pusher
      │  Push (gRPC)
      ▼
    aggregator   ingest → ledger → merge → serve
      │  List, Watch, Get (gRPC)
      ▼
    clients      federator CLI · federator.client · any gRPC language

Users import from here, `federator.client`, `federator.cache` and `federator.testing`; `docs/architecture.md` has the
diagram with its queues, `docs/glossary.md` every term.
"""

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """Reads `__version__` from the installed metadata when first asked for: it costs a third of `federator --help`."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import version

    globals()[name] = version("federator")
    return str(globals()[name])
