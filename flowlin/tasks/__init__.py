"""Tasks of the source papers: toys made of a few points, and real images."""

from flowlin.tasks.images import cifar10 as cifar10
from flowlin.tasks.images import digits as digits
from flowlin.tasks.images import mnist as mnist
from flowlin.tasks.toys import hierarchy as hierarchy
from flowlin.tasks.toys import offset_xor as offset_xor
from flowlin.tasks.toys import parallel as parallel
from flowlin.tasks.toys import teacher as teacher
from flowlin.tasks.toys import xor as xor
