"""The library's version, which files carry."""

__version__ = "0.2.0"
