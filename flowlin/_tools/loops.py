"""Loops that have derivatives, and neighbouring floats: the only user of `equinox.internal`."""

from equinox.internal import prevbefore as prevbefore
from equinox.internal import while_loop as while_loop
