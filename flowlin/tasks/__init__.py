"""Tasks of the source papers: toys made of a few points, and real images."""

from flowlin.tasks.hierarchy import hierarchy as hierarchy
from flowlin.tasks.images import cifar10 as cifar10
from flowlin.tasks.images import digits as digits
from flowlin.tasks.images import mnist as mnist
from flowlin.tasks.teacher import teacher as teacher
from flowlin.tasks.xor import offset_xor as offset_xor
from flowlin.tasks.xor import parallel as parallel
from flowlin.tasks.xor import xor as xor
