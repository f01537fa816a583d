"""What a solver logs along a run, in a state of fixed size."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

ROWS = 1024  # a power of two


class History(eqx.Module):
    """Something along a run: every step's at first, thinned to every other one when full."""

    time: Float[Array, " K"]
    value: Float[Array, "K ..."]
    steps: Int[Array, ""]
    stride: Int[Array, ""]

    @staticmethod
    def empty(time: ArrayLike, value: ArrayLike) -> "History":
        """A history without rows, of values such as this one."""

        def rows(like: ArrayLike) -> Array:
            return jnp.full((ROWS, *jnp.shape(like)), jnp.inf, jnp.result_type(like))

        return History(rows(time), rows(value), jnp.zeros((), jnp.int32), jnp.ones((), jnp.int32))

    def append(self, time: ArrayLike, value: ArrayLike) -> "History":
        """One step more."""
        full = self.steps >= ROWS * self.stride
        stride = jnp.where(full, 2 * self.stride, self.stride)
        row = jnp.where(self.steps % stride == 0, self.steps // stride, ROWS)

        def appended(rows, value):
            half = jnp.concatenate([rows[::2], jnp.full_like(rows[ROWS // 2 :], jnp.inf)])
            return jnp.where(full, half, rows).at[row].set(value, mode="drop")

        return History(
            appended(self.time, time), appended(self.value, value), self.steps + 1, stride
        )

    def at(self, t: Float[Array, " T"]) -> Float[Array, "T ..."]:
        """The values at times t, linear in between."""
        known = jnp.isfinite(self.time)
        last = jnp.max(jnp.where(known, jnp.arange(ROWS), 0))
        # Past the last row stands its value.
        place = jnp.minimum(jnp.arange(ROWS), last)

        def along(values: Array) -> Array:
            return jnp.interp(t, self.time, values[place])

        flat = jax.vmap(along, 1, 1)(self.value.reshape(ROWS, -1))
        return flat.reshape(*t.shape, *self.value.shape[1:])
