"""What tests share so that one compiled program serves many of them."""

import functools

import numpy as np

import flowlin as fl

distance = functools.partial(fl.distance, relative=True)


def times(t1):
    """151 times from 0 to the end: runs that save as many share their programs."""
    return np.linspace(0, t1, 151)
