r"""Measures: numbers that describe a network, its function and its representations.

One rule. **A measure of a network is called as `measure(network, task, ...)`**, and what comes
after the task has a default or is bound with `functools.partial`. So each can be used three ways:

```python
fl.measures.conserved(network)                                  # now
fl.measures.along(flow, fl.measures.conserved)                  # at flow.ts, from stored networks
fl.gradient_flow(..., observe={"q": fl.measures.conserved})     # at ts, without storing networks
```

Measures that look at inputs alone take an array of inputs (P, N_in) in place of the task, those
that look at no sample need none; `OnTask(measure, test)` fixes a task other than the run's.

**A measure of representations is called with arrays whose rows are samples**, (..., P, H), and any
leading axes such as time are kept; `hidden` makes those arrays:

```python
h = fl.measures.along(flow, fl.measures.hidden)                 # (T, P, H)
fl.measures.effective_rank_of_gram(h)                           # (T,)
observe={"rank": lambda n, task: fl.measures.effective_rank_of_gram(fl.measures.hidden(n, task))}
```

All are pure and work under `jit`, `vmap` and, where they are smooth, `grad`. A ratio whose
denominator is zero (the rank of a zero matrix, the CKA of a constant representation) is undefined
and comes as nan.
"""

from flowlin.measures.along import OnTask as OnTask
from flowlin.measures.along import along as along
from flowlin.measures.conserved import conserved as conserved
from flowlin.measures.conserved import conserved_matrix as conserved_matrix
from flowlin.measures.conserved import drift as drift
from flowlin.measures.effective_map import EffectiveMap as EffectiveMap
from flowlin.measures.effective_map import effective_map as effective_map
from flowlin.measures.effective_rank import effective_rank as effective_rank
from flowlin.measures.effective_rank import effective_rank_of_gram as effective_rank_of_gram
from flowlin.measures.effective_rank import spectral_entropy as spectral_entropy
from flowlin.measures.embedding import Embedding as Embedding
from flowlin.measures.embedding import mds as mds
from flowlin.measures.hidden_units import activity as activity
from flowlin.measures.hidden_units import hidden as hidden
from flowlin.measures.hidden_vectors import HiddenVectors as HiddenVectors
from flowlin.measures.hidden_vectors import alignment as alignment
from flowlin.measures.hidden_vectors import hidden_vectors as hidden_vectors
from flowlin.measures.kink_positions import kink_positions as kink_positions
from flowlin.measures.kink_positions import kink_rates as kink_rates
from flowlin.measures.kink_positions import velocity as velocity
from flowlin.measures.linear_cka import gram as gram
from flowlin.measures.linear_cka import linear_cka as linear_cka
from flowlin.measures.loss_and_error_rate import error_rate as error_rate
from flowlin.measures.loss_and_error_rate import loss as loss
from flowlin.measures.mode_shares import ModeShares as ModeShares
from flowlin.measures.mode_shares import mode_matrix as mode_matrix
from flowlin.measures.mode_shares import mode_shares as mode_shares
from flowlin.measures.norms import Norms as Norms
from flowlin.measures.norms import norms as norms
from flowlin.measures.on_grid import on_grid as on_grid
from flowlin.measures.representation_distances import distance_ratio as distance_ratio
from flowlin.measures.representation_distances import distances as distances
from flowlin.measures.sharpness import sharpness as sharpness
from flowlin.measures.tangent_kernel import tangent_kernel as tangent_kernel
from flowlin.measures.variance_explained import variance_explained as variance_explained
