"""One mode that no other disturbs: strength, times, weights; and the balanced one in functions."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from flowlin._tools.arguments import checked, real_array
from flowlin._tools.arrays import is_traced, replace_fields
from flowlin._tools.numerics import default_floats, safe_divide
from flowlin._tools.printing import Summary, format_number, print_by
from flowlin.theory.closed_form import (
    DEPTH_RANGE,
    FRACTION_RANGE,
    RANGES,
    SIZE_RANGE,
    START_RANGE,
    TIME_RANGE,
    broadcast_shape,
    closed_form,
)
from flowlin.theory.deep import (
    deep_hitting_time,
    deep_inflections,
    deep_start,
    deep_strength,
    require_balanced_sign,
)
from flowlin.theory.mode_starts import imbalance
from flowlin.theory.two_layer import (
    strength_at,
    time_until,
    two_layer_hitting_time,
    two_layer_inflections,
    two_layer_start,
    two_layer_strength,
    two_layer_vectors,
)


def _summarise_mode(mode: "Mode") -> Summary:
    """Print the numbers of a mode."""
    names = ("s", "d", "a0", "depth", "imbalance", "tau")
    given = {name: getattr(mode, name) for name in names if getattr(mode, name) is not None}
    rows = [(name, f"{name} = {format_number(value)}") for name, value in given.items()]
    return Summary("Mode", rows, inline=True)


@checked(
    s=real_array,
    d=RANGES["d"],
    a0=real_array,
    depth=DEPTH_RANGE,
    imbalance=real_array,
    tau=RANGES["tau"],
)
@print_by(_summarise_mode)
class Mode(eqx.Module):
    r"""One mode of a linear network, or many side by side, in closed form.

    $$\tau \dot a = \sqrt{\lambda^2 + 4 a^2}\, (s - d a) \quad (L = 2), \qquad
      \tau \dot a = L\, a^{2 - 2/L} (s - d a).$$

    Two layers may be unbalanced, and everything about them of either sign; of other depths the mode
    is balanced. Where neither is, there is no closed form.

    ```python
    mode = fl.theory.Mode(modes.s, modes.d, fl.theory.balanced_strength(network, modes))
    mode.strength(ts[:, None]), mode.hitting_time(0.1), mode.half_time
    ```

    Works under `jit`, `vmap` and `grad`, by its fields too. NaN stays NaN, elementwise.

    **Arguments:** (arrays that broadcast)

    - `s`, `d`: singular value and input variance of the mode, d >= 0; s >= 0 unless two layers.
    - `a0`: strength at t = 0; >= 0 for three and more layers. None leaves the start open.
    - `depth`: L, 1 or at least 2, not necessarily whole. For inf, all times are in units of
      tau / L, that is, L times the time.
    - `imbalance`: conserved $\lambda$ of a lambda-balanced or scalar mode ($w_2^2 - w_1^2$), or
      `theory.imbalance` of two hidden vectors; its sign does not matter. 0 is a balanced mode.
    - `tau`: time constant.

    `of_vectors` and `of_weights` start two layers from weights. Derivatives pass through these;
    in a0 and the imbalance the strength has a cone where both are zero, and its derivative there is
    set from above.

    **Raises:** `ValueError` for concrete values outside these ranges, and for an imbalance of other
    depths than two.

    Source: Saxe et al. (2014) and its supplement; Arora et al. (2018); lead paper, Eq. 20.
    """

    s: Array
    d: Array
    a0: Array | None
    depth: Array
    imbalance: Array
    tau: Array
    p: Array | None  # hidden vectors (..., H) at t = 0, where they are known
    q: Array | None
    two_layers: bool = eqx.field(static=True)  # known under `jit`, where the depth is not

    def __init__(
        self,
        s: ArrayLike,
        d: ArrayLike,
        a0: ArrayLike | None = None,
        depth: ArrayLike = 2,
        imbalance: ArrayLike = 0.0,
        tau: ArrayLike = 1.0,
    ):
        given = {"s": s, "d": d, "depth": depth, "imbalance": imbalance, "tau": tau}
        broadcast_shape(given if a0 is None else given | {"a0": a0}, {})
        self.two_layers = not is_traced(depth) and bool(np.all(np.asarray(depth) == 2))
        if not self.two_layers:
            SIZE_RANGE("s", s)
            if is_traced(imbalance) or np.any(np.asarray(imbalance) != 0):
                raise ValueError(
                    "`imbalance` must be 0, and known to be, where `depth` is not 2: there is no "
                    "closed form for it; use fl.gradient_flow."
                )
            if a0 is not None:
                require_balanced_sign("a0", a0, depth)
        self.s, self.d, self.depth, self.imbalance, self.tau = default_floats(*given.values())
        self.a0 = None if a0 is None else default_floats(a0)[0]
        self.p = self.q = None

    @staticmethod
    @checked(s=real_array, d=RANGES["d"], p=real_array, q=real_array, tau=RANGES["tau"])
    def of_vectors(
        s: ArrayLike, d: ArrayLike, p: ArrayLike, q: ArrayLike, tau: ArrayLike = 1.0
    ) -> "Mode":
        """Return a two-layer mode that starts from hidden p = W_2^T u, q = W_1 v, (..., H).

        Exact for every isolated mode, whatever p and q: a0 = p . q, and their `theory.imbalance`.

        **Raises:** `ValueError` for hidden vectors of different size, and as `Mode` does.
        """
        own = {"p": 1, "q": 1}
        broadcast_shape({"s": s, "d": d, "p": p, "q": q, "tau": tau}, own)
        p, q = default_floats(p, q)
        gap = imbalance(p, q)  # looks at the vectors' sizes, too
        return replace_fields(Mode(s, d, jnp.sum(p * q, axis=-1), 2, gap, tau), p=p, q=q)

    @staticmethod
    @checked(s=real_array, d=RANGES["d"], w1=real_array, w2=real_array, tau=RANGES["tau"])
    def of_weights(
        s: ArrayLike, d: ArrayLike, w1: ArrayLike, w2: ArrayLike, tau: ArrayLike = 1.0
    ) -> "Mode":
        """Return a mode of one hidden unit that starts from its two weights, of any signs.

        **Raises:** `ValueError` as `Mode` does.
        """
        broadcast_shape({"s": s, "d": d, "w1": w1, "w2": w2, "tau": tau}, {})
        w1, w2 = default_floats(w1, w2)
        return Mode.of_vectors(s, d, w2[..., None], w1[..., None], tau)

    @checked(t=TIME_RANGE)
    def strength(self, t: ArrayLike) -> Float[Array, "..."]:
        """Return the strength a at times t, >= 0; inf allowed.

        **Returns:** strengths of the shape to which `t` and the mode's numbers broadcast.

        Without drag (d = 0) it may leave the range of floats, and is inf from there on.
        """
        return self._evaluate(two_layer_strength, deep_strength, t, self._start)

    @checked(level=real_array)
    def hitting_time(self, level: ArrayLike) -> Float[Array, "..."]:
        """Return when the strength is at a level; inf if never, 0 where it starts there.

        **Returns:** times of the shape to which `level` and the mode's numbers broadcast.
        """
        return self._evaluate(two_layer_hitting_time, deep_hitting_time, level, self._start)

    @checked(level=real_array, t=TIME_RANGE)
    def start_for(self, level: ArrayLike, t: ArrayLike) -> Float[Array, "..."]:
        """Return the a0 from which such a mode is at a level at time t, for any start of its own.

        **Returns:** strengths of the shape to which `level`, `t` and its numbers broadcast.

        With the level s/2d the start of a wanted `half_time`, with `inflection_levels` that of a
        wanted inflection. Below the fixed point s/d every balanced mode has one; -inf where an
        unbalanced mode or a single layer from there would be earlier; above it, inf likewise.

        **Raises:** `ValueError` for levels below zero of three and more layers.
        """
        if not self.two_layers:
            require_balanced_sign("level", level, self.depth)
        return self._evaluate(two_layer_start, deep_start, level, t)

    @property
    def half_time(self) -> Float[Array, "..."]:
        """Time at which it reaches half of its full strength s/d, of the shape of the mode.

        inf for d = 0, and where the start is beyond it.
        """
        return self._time_of(safe_divide(self.s, 2 * self.d, jnp.inf))

    @property
    def inflection_levels(self) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        r"""Strengths (lower, upper) between which the curve accelerates, of the mode's shape.

        $$a = \frac{s \pm \sqrt{s^2 - 2 d^2 \lambda^2}}{4 d} \quad (L = 2), \qquad
          a = 0,\ \frac{2L - 2}{3L - 2} \frac sd.$$

        NaN for a single layer, which slows down from the start, and so does a mode as unbalanced as
        $d |\lambda| > s / \sqrt 2$; for d = 0 the upper one is inf. Along the sign of s.
        """
        if self.two_layers:
            return two_layer_inflections(self.s, self.d, self.imbalance)
        return deep_inflections(self.s, self.d, self.depth)

    @property
    def inflection_times(self) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Times at which the curve starts to accelerate and at which it starts to slow down.

        Those of `inflection_levels`, of the shape of the mode; inf where there is no such level, or
        the start is beyond it.
        """
        lower, upper = self.inflection_levels
        return self._time_of(lower), self._time_of(upper)

    @checked(t=TIME_RANGE)
    def vectors(self, t: ArrayLike) -> tuple[Float[Array, "... H"], Float[Array, "... H"]]:
        """Return hidden vectors (p, q) at times t, (..., H) each, of a mode by `of_vectors`.

        Errors are relative to the norm of both. Where their product is much smaller than that,
        `strength` keeps its digits.

        **Raises:** `ValueError` for a mode that starts from a strength.
        """
        if self.p is None or self.q is None:
            raise ValueError(
                "this mode starts from a strength, which many weights have; make it by "
                "`theory.Mode.of_vectors` or `theory.Mode.of_weights`."
            )
        return two_layer_vectors(*default_floats(t), self.s, self.d, self.p, self.q, self.tau)

    @checked(t=TIME_RANGE)
    def weights(self, t: ArrayLike) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Return weights (w1, w2) at times t, of their shape, of a mode by `of_weights`.

        **Raises:** `ValueError` for a mode of several units, or that starts from a strength.
        """
        p, q = self.vectors(t)
        if p.shape[-1] != 1:
            raise ValueError(f"this mode has {p.shape[-1]} hidden units; take `vectors`.")
        return q[..., 0], p[..., 0]

    @property
    def _start(self) -> Array:
        if self.a0 is None:
            raise ValueError(
                "this mode has no start; pass `a0`, or make it by `theory.Mode.of_vectors`."
            )
        return self.a0

    def _evaluate(self, of_two_layers: Callable, of_any: Callable, *given: ArrayLike) -> Array:
        """Evaluate the formula of the mode's kind."""
        form, kind = (of_two_layers, self.imbalance) if self.two_layers else (of_any, self.depth)
        return form(*default_floats(*given), self.s, self.d, kind, self.tau)

    def _time_of(self, level: Array) -> Array:
        """Return the hitting time of a level that may be NaN or infinite: there is none, inf."""
        known = jnp.isfinite(level)
        time = self.hitting_time(jnp.where(known, level, self._start))
        return time + jnp.where(known, 0.0, jnp.inf)  # NaN where a number of the mode is


# ---- The balanced two-layer mode in functions: strength, hitting time, delay by gating.
#
# $\tau \dot a = 2 a (s - d a)$ (Saxe et al. 2014; lead paper Eq. 21 with its missing d restored).
# Differentiable, also where s or d is zero.


@closed_form(s=SIZE_RANGE, a0=START_RANGE)
def mode_strength(
    t: ArrayLike, s: ArrayLike, d: ArrayLike, a0: ArrayLike, tau: ArrayLike = 1.0
) -> Float[Array, "..."]:
    r"""Strength a(t) of a balanced two-layer mode (lead paper Eq. 7 / 22).

    $$a(t) = \frac{s/d}{1 - (1 - \frac{s}{d a_0}) e^{-2 s t / \tau}}
           = \frac{a_0}{e^{-2st/\tau} + a_0 d\, (1 - e^{-2st/\tau}) / s},$$

    the second form having no quotient that vanishes: at s = 0 it is $a_0 / (1 + 2 a_0 d t/\tau)$,
    at s = d = 0 the constant a0, at t = inf the fixed point s/d (errata E7).

    **Arguments:** (arrays that broadcast)

    - `t`: time, >= 0, inf allowed.
    - `s`, `d`: singular value and input variance of the mode, >= 0.
    - `a0`: strength at t = 0, >= 0; a negative one is not a balanced mode and blows up.
    - `tau`: time constant.

    **Returns:** a(t), of the shape to which the arguments broadcast.

    **Raises:** `ValueError` for concrete values outside these ranges.
    """
    return strength_at(*default_floats(t, s, d, a0, tau))


@closed_form(s=SIZE_RANGE)
def hitting_time(
    rho: ArrayLike, s: ArrayLike, d: ArrayLike, a0: ArrayLike, tau: ArrayLike = 1.0
) -> Float[Array, "..."]:
    r"""Time at which a balanced two-layer mode reaches `rho` (lead paper Eq. 13).

    $$\hat t = \frac{\tau}{2s} \log \frac{\rho (s - d a_0)}{a_0 (s - d \rho)}
             = \frac{\tau}{2s} \log\Big(1 + s\, \frac{\rho - a_0}{a_0 (s - d\rho)}\Big).$$

    Needs rho between a0 and s/d, from either side (errata E10); returns inf where the mode never
    gets there, as for every a0 <= 0, and 0 where rho = a0. At s = 0 the limit
    $\tau (a_0 - \rho) / (2 d a_0 \rho)$ holds, a mode that decays.

    **Arguments:** (arrays that broadcast) `rho` the level, the others as in `mode_strength`.

    **Returns:** the time, of the shape to which the arguments broadcast.

    **Raises:** `ValueError` as `mode_strength` does.
    """
    return time_until(*default_floats(rho, s, d, a0, tau))


@closed_form(s=SIZE_RANGE, a0=START_RANGE, g=FRACTION_RANGE)
def gating_delay(
    s: ArrayLike, d: ArrayLike, a0: ArrayLike, g: ArrayLike, tau: ArrayLike = 1.0
) -> Float[Array, "..."]:
    r"""Delay of a ReLU mode behind the linear one when a fraction g of the units is live.

    Lead paper Eq. 14 / 27, in which rho cancels (errata E11):

    $$\Delta t = \frac{\tau}{2 s} \log \frac{s - d a_0 g}{g\, (s - d a_0)}.$$

    Positive exactly for g < 1; the paper's further condition s > d rho is not needed. `g` is the
    **live** fraction, the mean of g_j (the text calls it the rate of dead neurons). This is the
    delay if live units are always on; partly active ones add to it, so it underestimates.

    **Arguments:** (arrays that broadcast)

    - `s`, `d`, `a0`: of the mode, with 0 < a0 < s/d.
    - `g`: live fraction in [0, 1]; inf where none is.
    - `tau`: time constant.

    **Returns:** the delay, of the arguments' shape, in the units of `tau`; inf where no unit lives.

    **Raises:** `ValueError` for concrete values outside these ranges.
    """
    s, d, a0, g, tau = default_floats(s, d, a0, g, tau)
    return tau / (2 * s) * (-jnp.log(g) + jnp.log1p(d * a0 * (1 - g) / (s - d * a0)))
