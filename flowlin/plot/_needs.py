"""Imported before everything else here: says what to install where matplotlib is missing."""

try:
    import matplotlib as matplotlib
except ImportError as error:
    raise ImportError("`fl.plot` needs matplotlib: pip install 'flowlin[plot]'.") from error
