"""Pictures: functions that draw data on matplotlib Axes, and return the Axes.

Needs matplotlib (extra `plot`), which `import flowlin` does not import: `fl.plot` does, when it is
first used. `ax=None` makes a figure with one Axes. No function changes matplotlib's global
settings; `with fl.plot.style():` sets those of the figures made in it.
"""

try:
    import matplotlib as matplotlib
except ImportError as error:
    raise ImportError("`fl.plot` needs matplotlib: pip install 'flowlin[plot]'.") from error

from flowlin._tools.moved import missing_name as _missing_name
from flowlin.plot.activity import activity as activity
from flowlin.plot.animate import animate as animate
from flowlin.plot.cube import cube as cube
from flowlin.plot.kinks import kinks as kinks
from flowlin.plot.losses import losses as losses
from flowlin.plot.modes import modes as modes
from flowlin.plot.pathways import lifetimes as lifetimes
from flowlin.plot.pathways import overlap as overlap
from flowlin.plot.pathways import pathways as pathways
from flowlin.plot.representations import representations as representations
from flowlin.plot.sides import side_history as side_history
from flowlin.plot.sides import sides as sides
from flowlin.plot.style import COLOURS as COLOURS
from flowlin.plot.style import look as look
from flowlin.plot.style import shades as shades
from flowlin.plot.style import style as style
from flowlin.plot.sweeps import sweep_line as sweep_line
from flowlin.plot.sweeps import sweep_map as sweep_map
from flowlin.plot.work_precision import work_precision as work_precision


def __getattr__(name: str):
    """Answer a name that is not there."""
    moved = {"gates": "plot.sides", "gate_history": "plot.side_history"}
    raise _missing_name("flowlin.plot", name, moved)
