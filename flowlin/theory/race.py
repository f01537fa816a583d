"""The neural race reduction: a gated graph's flow, mode by mode, as a race of its pathways."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from flowlin._tools.arguments import (
    CHECKS_BY_NAME,
    checked,
    finite_array,
    instance_of,
    not_negative,
    string,
)
from flowlin._tools.arrays import is_traced, with_axes
from flowlin._tools.draws import draw_normals
from flowlin._tools.moved import moved_attributes
from flowlin._tools.printing import Summary, format_count, format_first, format_number, print_by
from flowlin.measures.modes_summary import MOST_MODES
from flowlin.networks.fit import require_fit
from flowlin.networks.graph import AbstractGraph, GatedGraph, ModeGraph, require_single_graph
from flowlin.networks.graph_parts import Columns, Edge
from flowlin.networks.pathways import Pathway
from flowlin.record.trajectory import Trajectory
from flowlin.runs.gradient_flow import gradient_flow
from flowlin.tasks.task import Task
from flowlin.theory.joint_modes import Block, common_modes, extend_bases, refine_bases
from flowlin.theory.race_hits import AbstractRace, RaceHits


def race_certificate_summary(found: "RaceCertificate") -> Summary:
    """Print the residuals, and the tolerance."""
    names = ("commutator", "outputs", "inputs", "alignment")
    rows = [(name, f"{name} {format_number(getattr(found, name), 4)}") for name in names]
    rows.append(("tolerance", f"tolerance {format_number(found.tolerance, 4)}"))
    return Summary("RaceCertificate", rows, inline=True)


def race_summary(found: "Race") -> Summary:
    """Print pathways and modes, whether it is exact, and what each pathway would reach alone."""
    count, modes = found.s.shape
    title = f"Race of {format_count(count, 'pathway')} for {format_count(modes, 'mode')}"
    rows = [("exact", "yes" if found.exact else "no"), ("residuals", str(found.certificate))]
    alone = np.asarray(found.s) / np.where((d := np.einsum("ppk->pk", found.d)) > 0, d, np.inf)
    for p, row in list(zip(found.pathways, alone, strict=True))[:MOST_MODES]:
        rows.append((" -> ".join(p.nodes), f"alone to {format_first(row, 4)}"))
    return Summary(title, rows + [("...", "")] * (count > MOST_MODES))


@print_by(race_certificate_summary)
class RaceCertificate(NamedTuple):
    """Relative residuals of a race, all of them zero where it is exact.

    - `commutator`: of the pathways' statistics, see `PathwayStatistics`.
    - `outputs`: the largest part of any Sigma_yx(p) that leaves the modes, over the largest norm.
    - `inputs`: likewise of any Sigma_x(j, p) of two pathways into one sink.
    - `alignment`: norm of what the weights are beside R_t B_e R_s^T, over the weights' norm.
    - `tolerance`: the number up to which the last three count as zero.
    """

    commutator: float
    outputs: float
    inputs: float
    alignment: float
    tolerance: float

    @property
    def exact(self) -> bool:
        """Tell whether outputs, inputs and alignment are zero up to the tolerance."""
        return max(self.outputs, self.inputs, self.alignment) <= self.tolerance


class LeadingPathways(NamedTuple):
    """The pathways from a source to a sink that carry the modes at the end of a run.

    - `pathways`: by mode, the one with the largest share at the end.
    - `share`: (K,), its share of the sum over all pathways between the two.
    - `since`: (K,), the saved time from which on its share is the largest until the end.
    """

    pathways: tuple[Pathway, ...]
    share: np.ndarray
    since: np.ndarray


@moved_attributes(alone="lone_strengths", unexplained="unexplained_loss")
@print_by(race_summary)
class Race(AbstractRace):
    r"""A gated graph's flow as a race of pathways for the modes of a task.

    With bases that the statistics share, $\Sigma_{yx}(p) = U_{t(p)} S(p) V_{s(p)}^T$ and
    $\Sigma_x(j, p) = V_{s(j)} D(j, p) V_{s(p)}^T$, and weights $W_e = R_{t(e)} B_e R_{s(e)}^T$ with
    R = U at sinks and V at sources, every mode flows by itself:

    $$\tau \dot B_e = \sum_{p \ni e} B_{p \setminus e} \Big[S(p) - \sum_{j \text{ ends as } p}
      B_j D(j, p)\Big].$$

    - `network`, `task`: the initial network, and what it is trained on.
    - `bases`: by node, R, (N, K) with orthonormal columns; of modes that are not there, zero.
    - `pathways`: of the network, n of them.
    - `s`: (n, K), S(p); modes that the task drives most come first.
    - `d`: (n, n, K), D(j, p), zero for pathways to different sinks.
    - `start`: the strengths B_e of the network, on the edges of a graph of modes.
    - `reduced`: the task in the modes' coordinates, which `start` flows on.
    - `certificate`: the residuals, which are zero where it is exact.

    Source: Saxe, Sodhani and Lewallen, "The Neural Race Reduction" (2022).
    """

    network: GatedGraph
    task: Task
    bases: dict[str, Float[Array, "_ K"]]
    pathways: tuple[Pathway, ...]
    s: Float[Array, "n K"]
    d: Float[Array, "n n K"]
    start: ModeGraph
    reduced: Task
    certificate: RaceCertificate = eqx.field(static=True)

    @property
    def exact(self) -> bool:
        """Tell whether the network's flow is that of the race, up to the solvers' tolerances."""
        return self.certificate.exact

    @property
    def lone_strengths(self) -> Float[Array, "n K"]:
        """S(p) / D(p, p): the strength at which a pathway alone would end; 0 where none drives."""
        own = jnp.einsum("ppk->pk", self.d)
        return jnp.where(own > 0, self.s / jnp.where(own > 0, own, 1.0), 0.0)

    @property
    def unexplained_loss(self) -> Float[Array, ""]:
        """The loss on targets outside of the modes, which the reduced run's losses leave out."""
        whole = _mean_square(self.task.y, self.task.weights)
        return (whole - _mean_square(self.reduced.y, self.reduced.weights)) / 2

    @checked(network=None)
    def strengths(self, network: AbstractGraph) -> Float[Array, "n K"]:
        r"""Return strengths $u^T W_p v$ (n, K) of n pathways and K modes, of a network or reduced.

        **Raises:** `ValueError` for a network on another graph.
        """
        network = instance_of(AbstractGraph, "a gated graph, or a reduced one")("network", network)
        require_single_graph(network)
        if network.edges != self.network.edges:
            raise ValueError(
                f"`network` must have the race's edges, {list(self.network.edges)}, got "
                f"{list(network.edges)}."
            )
        if isinstance(network, ModeGraph):
            return jnp.stack([network.product(p) for p in self.pathways])
        seen: dict[tuple[Edge, ...], Array] = {}
        for p in self.pathways:
            for k, edge in enumerate(p.edges):
                before = seen[p.edges[:k]] if k else self.bases[p.source]
                if p.edges[: k + 1] not in seen:
                    seen[p.edges[: k + 1]] = network.weights[edge] @ before
        rows = [jnp.sum(self.bases[p.target] * seen[p.edges], axis=0) for p in self.pathways]
        return jnp.stack(rows)

    @checked(pathway=None)
    def product(
        self, pathway: Pathway, flow: Trajectory | None = None
    ) -> Float[Array, "... N_sink N_source"]:
        r"""Return $U_{t(p)} B_p V_{s(p)}^T$ of a pathway by the race, (N_sink, N_source).

        Where the race is exact it is `network.product(pathway)`, at the start and along the flow;
        elsewhere the part of it that the modes carry.

        **Arguments:**

        - `pathway`: one of `pathways`.
        - `flow`: a run of `flow` or of the network, for one matrix at each saved time, (T, N_sink,
          N_source); None is the start.

        **Raises:** `ValueError` for a pathway that is not one of them, or a run of another graph.
        """
        pathway = instance_of(Pathway, "one of `race.pathways`")("pathway", pathway)
        if pathway not in self.pathways:
            raise ValueError(f"`pathway` must be one of `race.pathways`, got {pathway}.")
        stack = flow is not None
        strengths = strengths_along(self, flow.networks) if stack else self.strengths(self.start)
        own = strengths[..., self.pathways.index(pathway), :]
        target = with_axes(self.bases[pathway.target], own.ndim - 1)
        return own[..., None, :] * target @ self.bases[pathway.source].T

    @checked(strength=None)
    def aligned(self, strength: PyTree = None, *, key: PRNGKeyArray) -> GatedGraph:
        """Return a network for which the race is exact, as far as the task allows.

        W_e = R_t B_e R_s^T with random orthonormal R at hidden nodes.

        **Arguments:**

        - `strength`: B_e, a number or one per mode (K,), of all edges or by edge; None takes those
          of `start`.
        - `key`: of `jax.random`.

        **Raises:** `ValueError` for strengths of another shape, or of edges that there are not.
        """
        by_edge = self._strengths_by_edge(strength)
        bases, dtype = dict(self.bases), self.network.dtype
        hidden = [node for node in bases if node not in _terminal_widths(self.network)]
        shapes = [(len(bases[node]), min(bases[node].shape)) for node in hidden]
        drawn = draw_normals(key, (len(hidden),), shapes, np.ones(len(hidden), dtype))
        for node, normals in zip(hidden, drawn, strict=True):
            basis = jnp.zeros(bases[node].shape, dtype)
            bases[node] = basis.at[:, : normals.shape[1]].set(jnp.linalg.qr(normals)[0])
        weights = {
            (a, b): (bases[b] * jnp.atleast_2d(by_edge[a, b])) @ bases[a].T
            for a, b in self.network.weights
        }
        return self.network.with_parameters((weights, self.network.biases))

    def _strengths_by_edge(self, given: object) -> dict[Edge, Array]:
        """Return strengths B_e by edge, each a number or (K,), from what `aligned` was given."""
        edges, modes = self.network.edges, self.s.shape[1]
        if given is None:
            return self.start.weights
        by_edge = given if isinstance(given, dict) else dict.fromkeys(edges, given)
        if set(by_edge) != set(edges):
            raise ValueError(f"`strength` must have one entry by each edge, {list(edges)}.")
        found = {}
        for edge, value in by_edge.items():
            found[edge] = jnp.asarray(finite_array("strength", value), self.network.dtype)
            if found[edge].shape not in ((), (modes,)):
                raise ValueError(
                    f"`strength` must be a number or have shape ({modes},), one per mode, got "
                    f"{found[edge].shape}."
                )
        return found

    def flow(self, t1: ArrayLike, **options: Any) -> Any:
        """Return the race run by `fl.gradient_flow` and its options: a trajectory of `ModeGraph`s.

        `flow.networks.weights[a, b]` are the strengths B_e of an edge at the saved times, (T, K),
        and `flow.product(p)` those of a pathway. Its losses are those of the network's flow less
        `unexplained`.
        """
        return gradient_flow(self.start, self.reduced, t1, **options)

    def hits(self, rho: ArrayLike, **options: Any) -> Any:
        """Return an event for runs of the network or of `flow`: pathways that hit modes.

        Pathway n hits mode k when its strength reaches `rho` times `lone_strengths[n, k]`, at
        which it would end without the others: with `rho` above 1/2 only one of two equal pathways
        can. The index is (n, k), of `pathways` and modes; pathways that are not driven do not hit.

        **Arguments:** `rho`, a share or an array (n, K) of them; `direction`, `terminate` and
        `name` ("race") as for `fl.Crossing`.
        """
        return RaceHits(self, rho, **options)

    @checked(source=string, target=string)
    def winner(
        self, flow: Trajectory, source: str | None = None, target: str | None = None
    ) -> LeadingPathways:
        """Return which pathways from a source to a sink carry the modes in a run, and since when.

        A pathway's share of a mode is B_p S(p) over the sum of all, what is negative left out.

        **Arguments:**

        - `flow`: a run of the network or of `flow`, with saved networks.
        - `source`, `target`: may be left out where there is one of each.
        """
        which = self._pathways_between(source, target)
        strengths = np.asarray(strengths_along(self, flow.networks))[:, which]
        carried = np.maximum(strengths * np.asarray(self.s)[which], 0.0)
        total = carried.sum(axis=1, keepdims=True)
        shares = np.divide(carried, total, where=total > 0, out=np.zeros_like(carried))
        first = np.argmax(shares[-1], axis=0)
        leads = np.argmax(shares, axis=1) == first
        since = len(leads) - np.argmin(np.vstack([leads[::-1], np.zeros_like(first)]), axis=0)
        return LeadingPathways(
            tuple(self.pathways[which[n]] for n in first),
            np.take_along_axis(shares[-1], first[None], axis=0)[0],
            np.asarray(flow.ts)[since],
        )

    def _pathways_between(self, source: str | None, target: str | None) -> np.ndarray:
        """Return the numbers of the pathways from a source to a sink."""
        pairs = sorted({(p.source, p.target) for p in self.pathways})
        fitting = [(a, b) for a, b in pairs if source in (None, a) and target in (None, b)]
        if len(fitting) != 1:
            raise ValueError(
                f"`source` and `target` must be those of pathways, one of {pairs}, got {source!r} "
                f"and {target!r}."
            )
        return np.flatnonzero([(p.source, p.target) == fitting[0] for p in self.pathways])


@eqx.filter_jit
def strengths_along(race: Race, networks: AbstractGraph) -> Float[Array, "T n K"]:
    """Return the strengths (T, n, K) of stacked networks."""
    return jax.vmap(race.strengths)(networks)


@checked(network=CHECKS_BY_NAME["graph"], tolerance=not_negative)
def race(network: GatedGraph, task: Task, *, tolerance: float | None = None) -> Race:
    r"""Reduce the flow of a gated graph to a race of its pathways for the modes of the task.

    At sources and sinks it finds bases in which all pathways' statistics are diagonal, and at
    hidden nodes bases in which the weights are. Where these exist, up to rounding, the race is
    exact (`race.exact`, `race.certificate`); else it starts from the part of the weights that fits.

    **Arguments:**

    - `network`: the initial network, without biases; a source of its own with a constant column of
      x has the same effect.
    - `task`: what it is trained on, by squared error.
    - `tolerance`: of the certificate's residuals; None is eps^(2/3), 4e-11 in float64.

    **Returns:** `Race`, whose certificate says how far the reduction is from exact.

    **Raises:** `ValueError` for a network with biases, a task that does not fit or drives no mode,
    and under `jit`: the bases need numbers.
    """
    require_fit(network, task)
    if network.biases:
        raise ValueError(
            "`network` has biases, which take part in no mode; use a source with a constant column "
            "of x in their place."
        )
    if is_traced((network, task)):
        raise ValueError(
            "`theory.race` needs a concrete network and task; call it outside of jit and vmap, and "
            "pass the race in."
        )
    small = float(jnp.finfo(network.dtype).eps) ** (2 / 3) if tolerance is None else tolerance
    stats, pathways = network.pathway_statistics(task), network.pathways
    yx = [np.asarray(stats.yx[p], np.float64) for p in pathways]
    outputs = [Block(p.target, p.source, m) for p, m in zip(pathways, yx, strict=True)]
    pairs = [
        (i, k) for i, k in np.ndindex(len(yx), len(yx)) if _share_sink(pathways[i], pathways[k])
    ]
    x = {(i, k): np.asarray(stats.x[pathways[i], pathways[k]], np.float64) for i, k in pairs}
    inputs = [Block(pathways[i].source, pathways[k].source, m) for (i, k), m in x.items()]
    bases = _node_bases(network, outputs, inputs, small)
    s = np.stack([block.diagonal(bases) for block in outputs])
    d = np.zeros((len(yx), len(yx), s.shape[1]))
    for pair, block in zip(pairs, inputs, strict=True):
        d[pair] = block.diagonal(bases)
    s, d = _drop_rounding(s, network.dtype), _drop_rounding(d, network.dtype)
    edges = _edge_blocks(network)
    certificate = RaceCertificate(
        float(stats.commutator),
        _largest_residual(outputs, bases),
        _largest_residual(inputs, bases),
        _alignment_residual(edges, bases), small,
    )  # fmt: skip
    start = {(b.b, b.a): b.diagonal(bases) for b in edges}
    return _make_race(network, task, bases, s, d, start, certificate)


def _drop_rounding(strengths: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Set strengths within rounding of zero to zero, so that no ratio of rounding is taken."""
    noise = 32 * float(jnp.finfo(dtype).eps) * np.max(np.abs(strengths))
    return np.where(np.abs(strengths) > noise, strengths, 0.0)


def _share_sink(j: Pathway, p: Pathway) -> bool:
    """Tell whether two pathways end at one sink."""
    return j.target == p.target


def _terminal_widths(network: GatedGraph) -> dict[str, int]:
    """Return the widths of sources and sinks, by node."""
    return {node: stop - start for node, start, stop in (*network.sources, *network.sinks)}


def _edge_blocks(network: GatedGraph) -> list[Block]:
    return [Block(b, a, np.asarray(w, np.float64)) for (a, b), w in network.weights.items()]


def _node_bases(
    network: GatedGraph, outputs: list[Block], inputs: list[Block], tolerance: float
) -> dict[str, np.ndarray]:
    """Return a basis at every node, with the modes that the task drives most first."""
    sizes, blocks = _terminal_widths(network), outputs + inputs
    bases = common_modes(blocks, sizes, {node for node, _, _ in network.sinks})
    if not next(iter(bases.values())).shape[1]:
        raise ValueError("`task` drives no mode: its outputs do not correlate with its inputs.")
    if max(_largest_residual(outputs, bases), _largest_residual(inputs, bases)) > tolerance:
        bases = refine_bases(blocks, bases, sizes)
    strength = sum(np.abs(block.diagonal(bases)) for block in outputs)
    bases = {node: basis[:, np.argsort(-strength, kind="stable")] for node, basis in bases.items()}
    edges = _edge_blocks(network)
    bases = extend_bases(edges, bases, network.order)
    if _alignment_residual(edges, bases) > tolerance:
        bases = refine_bases(edges, bases, [node for node in bases if node not in sizes])
    return bases


def _largest_residual(blocks: list[Block], bases: dict[str, np.ndarray]) -> float:
    """Return the largest part of any block that leaves the modes, over the largest norm."""
    parts = []
    for a, b, m in blocks:
        diagonal = Block(a, b, m).diagonal(bases)
        parts += [
            bases[a].T @ m - diagonal[:, None] * bases[b].T,
            m @ bases[b] - bases[a] * diagonal,
        ]
    size = max(np.linalg.norm(m) for _, _, m in blocks)
    return float(max(np.linalg.norm(part) for part in parts) / size) if size else 0.0


def _alignment_residual(edges: list[Block], bases: dict[str, np.ndarray]) -> float:
    """Return the norm of the part of the weights outside of the modes, over their norm."""
    rest = [e.matrix - (bases[e.a] * e.diagonal(bases)) @ bases[e.b].T for e in edges]
    size = np.sqrt(sum(np.sum(e.matrix**2) for e in edges))
    return float(np.sqrt(sum(np.sum(part**2) for part in rest)) / size) if size else 0.0


def _make_race(
    network: GatedGraph,
    task: Task,
    bases: dict[str, np.ndarray],
    s: np.ndarray,
    d: np.ndarray,
    start: dict[Edge, np.ndarray],
    certificate: RaceCertificate,
) -> Race:
    """Make the race in the network's precision, with the task in the modes' coordinates."""
    found = (bases, s, d, start)
    by_node, strength, variance, first = jax.tree.map(
        lambda a: jnp.asarray(a, network.dtype), found
    )
    modes = s.shape[1]

    def in_mode_basis(rows: Array, columns: Columns) -> tuple[Array, Columns]:
        parts = [rows[:, a:b] @ by_node[node] for node, a, b in columns]
        places = [(node, n * modes, (n + 1) * modes) for n, (node, _, _) in enumerate(columns)]
        return jnp.concatenate(parts, axis=1), tuple(places)

    x, sources = in_mode_basis(task.x, network.sources)
    y, sinks = in_mode_basis(task.y, network.sinks)
    graph = ModeGraph(
        dict(sorted(first.items())), {}, jnp.ones((), network.dtype), network.node_gates,
        network.edge_gates, sources, sinks,
    )  # fmt: skip
    reduced = Task(x, y, f"{task.name}, modes", weights=task.weights)
    return Race(
        network=network, task=task, bases=by_node, pathways=network.pathways, s=strength,
        d=variance, start=graph, reduced=reduced, certificate=certificate,
    )  # fmt: skip


def _mean_square(rows: Array, weights: Array | None) -> Array:
    """Return the (weighted) average of the square norms of rows."""
    return jnp.average(jnp.sum(rows**2, axis=1), weights=weights)


CHECKS_BY_NAME["race"] = instance_of(Race, "a race, as `theory.race(network, task)` returns it")
