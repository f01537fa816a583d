"""Loops that have derivatives: the only user of `equinox.internal`."""

from equinox.internal import while_loop as while_loop
