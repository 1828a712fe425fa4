"""Printers: for each resource type the columns and cells that the apiserver's own Table has.

The apiserver computes a Table's cells object by object, so they cannot be had for states that only the federation
holds; these printers compute them here. A test compares them with a real apiserver's.
"""

from federator.cli.printers.printer import Column, Manifest, Printer
from federator.cli.printers.registry import printer_for

__all__ = ["Column", "Manifest", "Printer", "printer_for"]
