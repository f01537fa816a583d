"""Units of time: flow time against steps of gradient descent."""

import enum
from typing import Any

import equinox as eqx
import jax
from jaxtyping import ArrayLike

from flowlin._tools.arguments import argument_error, checked, integer_from, real_array
from flowlin._tools.arrays import as_float_array


class LossConvention(enum.Enum):
    """The loss that a discrete training loop means (errata, E4).

    The sums run over samples p and outputs k; P samples, B of them in a mini-batch.
    """

    HALF_MEAN = "1/(2P) sum_p |y - yhat|^2, or the same mean over a mini-batch"
    HALF_SUM = "1/2 sum_p |y - yhat|^2 over all samples (the lead paper, App. E)"
    MEAN = "1/P sum_p |y - yhat|^2, or the same mean over a mini-batch"
    TORCH_MEAN = "mean over samples and outputs, torch.nn.MSELoss()"
    BATCH_HALF_SUM = "1/2 sum over the B samples of a mini-batch"


def _convention_argument(name: str, value: object) -> LossConvention:
    """Check that an argument is one of the conventions, not its name."""
    if not isinstance(value, LossConvention):
        named = isinstance(value, str) and value in LossConvention.__members__
        known = value if named else "HALF_MEAN"
        raise argument_error(name, "an fl.LossConvention", value, f"pass fl.LossConvention.{known}")
    return value


@checked(convention=_convention_argument, samples=integer_from(1), outputs=integer_from(1))
class StepClock(eqx.Module):
    r"""Converts between steps of gradient descent and time of the mean-loss flow.

    The flow is $\tau\, \dot w = -\nabla L$ with $L = \frac{1}{2P} \sum \|y - \hat y\|^2$. One step
    of rate $\epsilon$ on a loss $f L$ advances it by $f \epsilon \tau$, so with $\tau = 1$ a unit
    of time takes $1 / (f \epsilon)$ steps; that number is what the papers call tau:

    | convention | f | steps per unit of time |
    |---|---|---|
    | `HALF_MEAN` | 1 | 1 / eps |
    | `HALF_SUM` | P | 1 / (P eps) |
    | `MEAN` | 2 | 1 / (2 eps) |
    | `TORCH_MEAN` | 2 / N_out | N_out / (2 eps) |
    | `BATCH_HALF_SUM` | B | 1 / (B eps) steps = 1 / (P eps) epochs |

    (The lead paper's Eq. 22 and its workshop version write 1/(N eps) for 1/(P eps).)

    **Arguments:**

    - `learning_rate`: eps.
    - `convention`: the loss that is descended.
    - `samples`, `outputs`, `batch_size`: P, N_out, B; each needed only by the conventions that
      name it.
    - `tau`: of the flow.

    **Raises:** `ValueError` for a learning rate or tau that is not positive, or a missing size.
    """

    learning_rate: float
    convention: LossConvention = eqx.field(static=True, default=LossConvention.HALF_MEAN)
    samples: int | None = eqx.field(static=True, default=None, kw_only=True)
    outputs: int | None = eqx.field(static=True, default=None, kw_only=True)
    batch_size: int | None = eqx.field(static=True, default=None, kw_only=True)
    tau: float = eqx.field(default=1.0, kw_only=True)

    def __check_init__(self):
        needed = {
            LossConvention.HALF_SUM: "samples",
            LossConvention.TORCH_MEAN: "outputs",
            LossConvention.BATCH_HALF_SUM: "batch_size",
        }.get(self.convention)
        if needed is not None and getattr(self, needed) is None:
            raise ValueError(f"{self.convention} needs `{needed}`; pass it as a keyword.")

    @property
    def factor(self) -> float:
        """f: the descended loss over the mean loss."""
        return {
            LossConvention.HALF_MEAN: lambda: 1.0,
            LossConvention.HALF_SUM: lambda: float(self.samples),  # pyright: ignore
            LossConvention.MEAN: lambda: 2.0,
            LossConvention.TORCH_MEAN: lambda: 2.0 / self.outputs,  # pyright: ignore
            LossConvention.BATCH_HALF_SUM: lambda: float(self.batch_size),  # pyright: ignore
        }[self.convention]()

    @property
    def steps_per_time(self) -> float:
        """Number of steps in a unit of flow time (with `tau=1`, the papers' tau)."""
        return 1.0 / (self.factor * self.learning_rate * self.tau)

    @checked(steps=real_array)
    def time(self, steps: ArrayLike) -> Any:
        """Return the flow time reached after `steps` steps, of its shape."""
        return _as_float(steps) / self.steps_per_time

    @checked(time=real_array)
    def steps(self, time: ArrayLike) -> Any:
        """Return the number of steps, not rounded, that reach flow time `time`, of its shape."""
        return _as_float(time) * self.steps_per_time


def _as_float(value: ArrayLike) -> Any:
    """Return a value, integers of JAX as floats."""
    return as_float_array(value) if isinstance(value, jax.Array) else value
