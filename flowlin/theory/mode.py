"""A mode that no other disturbs, as one object, and what follows from its closed forms."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import checked, real_array
from flowlin._tools.arrays import is_traced
from flowlin._tools.numerics import default_floats, safe_divide
from flowlin._tools.printing import Summary, format_number, print_by
from flowlin.theory.closed_form import (
    DEPTH_RANGE,
    RANGES,
    SIZE_RANGE,
    TIME_RANGE,
    broadcast_shape,
    closed_form,
)
from flowlin.theory.deep import deep_hitting_time, deep_inflection_level, deep_strength
from flowlin.theory.two_layer import inflection_levels, unbalanced_hitting_time, unbalanced_strength


def mode(found: Any) -> Summary:
    """Its numbers."""
    names = ("s", "d", "a0", "depth", "imbalance", "tau")
    said = [(name, f"{name} = {format_number(getattr(found, name))}") for name in names]
    return Summary("Mode", said, inline=True)


@checked(
    s=real_array,
    d=RANGES["d"],
    a0=real_array,
    depth=DEPTH_RANGE,
    imbalance=real_array,
    tau=RANGES["tau"],
)
@print_by(mode)
class Mode(eqx.Module):
    r"""One mode of a linear network, or many side by side: strength, hitting time, half-time.

    $$\tau \dot a = \sqrt{\lambda^2 + 4 a^2}\, (s - d a) \quad (L = 2), \qquad
      \tau \dot a = L\, a^{2 - 2/L} (s - d a).$$

    Two layers may be unbalanced, and the strength of either sign (`unbalanced_strength`); of other
    depths the mode is balanced (`deep_strength`).

    ```python
    mode = fl.theory.Mode(modes.s, modes.d, fl.theory.balanced_strength(network, modes))
    mode.strength(ts[:, None]), mode.hitting_time(0.1), mode.half_time
    ```

    Works under `jit`, `vmap` and `grad`, with respect to its fields too.

    **Arguments:** (arrays that broadcast)

    - `s`, `d`: singular value and input variance of the mode, d >= 0; s >= 0 unless two layers.
    - `a0`: strength at t = 0; >= 0 for three and more layers.
    - `depth`: L, 1 or at least 2, not necessarily whole; inf allowed (see `deep_strength`).
    - `imbalance`: $\lambda$, as in `unbalanced_strength`; 0 is a balanced mode.
    - `tau`: time constant.

    **Raises:** `ValueError` for concrete values outside these ranges, and for an imbalance of other
    depths than two, which have no closed form then.
    """

    s: Array
    d: Array
    a0: Array
    depth: Array
    imbalance: Array
    tau: Array
    two_layers: bool = eqx.field(static=True)  # known under `jit`, where the depth is not

    def __init__(
        self,
        s: ArrayLike,
        d: ArrayLike,
        a0: ArrayLike,
        depth: ArrayLike = 2,
        imbalance: ArrayLike = 0.0,
        tau: ArrayLike = 1.0,
    ):
        self.two_layers = not is_traced(depth) and bool(np.all(np.asarray(depth) == 2))
        if not self.two_layers:
            SIZE_RANGE("s", s)
            if is_traced(imbalance) or np.any(np.asarray(imbalance) != 0):
                raise ValueError(
                    "`imbalance` must be 0, and known to be, where `depth` is not 2: there is no "
                    "closed form for it; use fl.gradient_flow."
                )
        given = {"s": s, "d": d, "a0": a0, "depth": depth, "imbalance": imbalance, "tau": tau}
        broadcast_shape(given, {})
        numbers = default_floats(*given.values())
        self.s, self.d, self.a0, self.depth, self.imbalance, self.tau = numbers

    @checked(t=TIME_RANGE)
    def strength(self, t: ArrayLike) -> Float[Array, "..."]:
        """Strength a at times t, >= 0, that broadcast against the mode's numbers; inf allowed."""
        if self.two_layers:
            return unbalanced_strength(t, self.s, self.d, self.a0, self.imbalance, self.tau)
        return deep_strength(t, self.s, self.d, self.a0, self.depth, self.tau)

    @checked(level=real_array)
    def hitting_time(self, level: ArrayLike) -> Float[Array, "..."]:
        """Time at which the strength is at a level; inf if never, 0 where it starts there."""
        if self.two_layers:
            mode = self.s, self.d, self.a0, self.imbalance, self.tau
            return unbalanced_hitting_time(level, *mode)
        return deep_hitting_time(level, self.s, self.d, self.a0, self.depth, self.tau)

    @property
    def half_time(self) -> Float[Array, "..."]:
        """Time at which it reaches half of its full strength s/d.

        inf for d = 0, and where the start is beyond it.
        """
        return self._passing(safe_divide(self.s, 2 * self.d, jnp.inf))

    @property
    def inflection_level(self) -> Float[Array, "..."]:
        """Strength at which its learning curve begins to slow down.

        NaN where it slows down from the start, inf for d = 0; see `inflection_levels` for two
        layers, of which it is the upper one, and `deep_inflection_level`.
        """
        if self.two_layers:
            return inflection_levels(self.s, self.d, self.imbalance)[1]
        return deep_inflection_level(self.s, self.d, self.depth)

    @property
    def inflection_time(self) -> Float[Array, "..."]:
        """Time of `inflection_level`; inf where there is none, and where the start is beyond it."""
        return self._passing(self.inflection_level)

    def _passing(self, level: Array) -> Array:
        """Hitting time of a level that may be NaN or infinite: there is none then, which is inf."""
        known = jnp.isfinite(level)
        time = self.hitting_time(jnp.where(known, level, self.a0))
        return time + jnp.where(known, 0.0, jnp.inf)  # NaN where a number of the mode is


@closed_form
def half_time(
    s: ArrayLike, d: ArrayLike, a0: ArrayLike, imbalance: ArrayLike = 0.0, tau: ArrayLike = 1.0
) -> Float[Array, "..."]:
    """`Mode.half_time` of two layers. Arguments as in `unbalanced_strength`."""
    return Mode(s, d, a0, 2, imbalance, tau).half_time


@closed_form
def inflection_times(
    s: ArrayLike, d: ArrayLike, a0: ArrayLike, imbalance: ArrayLike = 0.0, tau: ArrayLike = 1.0
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Times at which the curve starts to accelerate and at which it starts to slow down.

    The hitting times of `inflection_levels`; inf where there is no such level, or where the mode
    starts beyond it. Arguments as in `unbalanced_strength`.
    """
    mode = Mode(s, d, a0, 2, imbalance, tau)
    return mode._passing(inflection_levels(s, d, imbalance)[0]), mode.inflection_time


@closed_form(s=SIZE_RANGE)
def deep_half_time(
    s: ArrayLike, d: ArrayLike, a0: ArrayLike, depth: ArrayLike, tau: ArrayLike = 1.0
) -> Float[Array, "..."]:
    """`Mode.half_time` of a balanced mode. Arguments as in `deep_strength`."""
    return Mode(s, d, a0, depth, tau=tau).half_time


@closed_form(s=SIZE_RANGE)
def deep_inflection_time(
    s: ArrayLike, d: ArrayLike, a0: ArrayLike, depth: ArrayLike, tau: ArrayLike = 1.0
) -> Float[Array, "..."]:
    """`Mode.inflection_time` of a balanced mode. Arguments as in `deep_strength`."""
    return Mode(s, d, a0, depth, tau=tau).inflection_time
