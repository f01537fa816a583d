"""flowlin against its peers, on the same problems, at matched final error.

    python benchmarks/peers.py [--quick] [--problem NAME] [--only PREFIX] [--repeats 11]

Peers come with the extra `benchmarks` (`pip install '.[benchmarks]'`); those that are missing are
listed as such. Every contender starts from the same weights in float64 and is refined until its
final parameters (or all hitting times) are within a relative error of the reference: solvers by
their tolerance, from loose to tight (atol = rtol / 100); descent by its rate, which its first-order
law gives from the error before. For every error the coarsest run that meets it is timed again, all
contenders taking turns in one process, without compilation: medians of up to `--repeats` runs, or
of as many as begin within 10 s. What each is given:

- flowlin: `fl.gradient_flow` as a user calls it; hitting times also under `jax.jit`. Evaluations
  are `flow.stats["evaluations"]`, all of them (an exact walk's are of its velocity; deciding and
  locating events is extra). Where `flowlin` alone stands, it goes over to a solver for stiff flows
  by itself.
- the field of JAX, SciPy and SUNDIALS contenders: one jitted function of the flat parameters, of a
  linear network from the sufficient statistics, as flowlin has it. On the full data every one of
  them would be slower (digits: 45 times).
- diffrax: `diffeqsolve` under jit; hitting times by `Event`, started again after each hit. Kvaerno5
  with its own solver, a dense Jacobian.
- SciPy: `solve_ivp` with RK45, DOP853, LSODA; all events in one run.
- CVODE by scikit-sundae: BDF, Newton by matrix-free GMRES (20 vectors); Adams for hitting times;
  its root finding, all in one run.
- torchdiffeq: `odeint`, and `odeint_event` to the next hit, again and again; under no_grad.
- descent: one jitted loop in JAX; in PyTorch a loop with updates in place.
- PyTorch: closed-form gradients (from the statistics for linear networks), no autograd; one
  thread or two, whichever is faster at the start.

A run that takes longer than 60 s (40 s on the tree) is not finished, and a ladder of tolerances
ends after that time. Descent has three times as long; where it would take longer by its first-order
law it is not started, and the steps that it would need are given.

Writes `peers.json` and `peers.md` to `benchmarks/results/`; problems that are not run keep theirs.
`--only` measures some contenders again, in turns with flowlin's main one, whose time then and now
scales their seconds.
`python benchmarks/report.py` makes the plots and `benchmarks/README.md` from it. The references of
ReLU networks on images are those of `averaged.py`, kept in `benchmarks/.cache`.
"""

import json
import platform

import _common
import _peers_events
import _peers_solvers
from _peers_measure import chosen_ones, joined, measured
from _peers_problems import PROBLEMS, Problem, toys
from _peers_table import markdown


def entry(problem: Problem, repeats: int, only: list[str], quick: bool = False) -> dict:
    """The contenders on one problem."""
    module = _peers_solvers if problem.hits is None else _peers_events
    contenders = module.contenders(problem, quick)
    if only:
        contenders = chosen_ones(contenders, problem.main, only)
    return measured(problem, contenders, repeats)


def merged(found: dict, only: list[str]) -> list[dict]:
    """The results so far with one problem's replaced."""
    path = _common.RESULTS / "peers.json"
    known = json.loads(path.read_text()) if path.exists() else []
    kept = {e["problem"]: e for e in known}
    name = found["problem"]
    kept[name] = joined(kept[name], found, only) if only else found
    return [kept[name] for name in PROBLEMS if name in kept]


def main() -> None:
    """Run the problems, saving after each."""
    parser = _common.parser(__doc__)
    parser.add_argument("--problem", choices=list(PROBLEMS), action="append")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--repeats", type=int, default=11)
    given = parser.parse_args()
    if given.quick:
        print(markdown([entry(problem, 1, [], quick=True) for problem in toys()]))
        return
    for name in given.problem or PROBLEMS:
        found = entry(PROBLEMS[name](), given.repeats, given.only) | {"machine": platform.machine()}
        entries = merged(found, given.only)
        print(markdown([found]), flush=True)
        _common.save("peers", entries, markdown(entries))


if __name__ == "__main__":
    main()
