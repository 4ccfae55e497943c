"""Computed messages beside their peers: belief propagation on grids, exact inference, the dense CRF.

Grids: 64×64 and 128×128, K = 21, 10 synchronous iterations, with one table for all edges and with one for each,
forward and forward + backward, against PGMax (JAX). Exact marginals of a small grid against pgmpy, which has no
belief propagation on loopy graphs. Dense CRF: 500×375, K = 21, 10 iterations, the lattice's construction included,
one image and a batch of eight, against pydensecrf. One thread each, float32 each. Peers are installed on first use
into an environment of their own and reported as absent where they cannot be; answers are compared as well.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common import finish, machine, seconds
from messagenet.graph.builders import grid_factor_graph
from messagenet.inference import BeliefPropagation, Exact
from messagenet.inference.dense import DEEPLAB, Bilateral, DenseGraph, DenseMeanField, Gaussian
from peer_environments import Absent, Arrays, Peer

PGMAX = Peer("pgmax", ("pgmax==0.6.1", "jax==0.4.30", "jaxlib==0.4.30", "numpy<2"))
PGMPY = Peer("pgmpy", ("pgmpy==0.1.26", "torch==2.13.0"))
PYDENSECRF = Peer("pydensecrf2", ("pydensecrf2==1.1", "numpy"))
NUM_CLASSES, ITERATIONS = 21, 10
HEIGHT, WIDTH, BATCH = 375, 500, 8
ABSENT = math.nan


@dataclass(frozen=True)
class Grid:
    """A grid to pass messages on.

    Attributes:
        unary: (H, W, K) log-potentials.
        horizontal: (K, K), or (edges, K, K), of each node and the next in its row.
        vertical: likewise, in its column.
    """

    unary: Tensor
    horizontal: Tensor
    vertical: Tensor

    @classmethod
    def random(cls, side: int, *, per_edge: bool, num_classes: int = NUM_CLASSES) -> Grid:
        """Moderate couplings that favour equal neighbours."""
        torch.manual_seed(side)
        lead = (side * (side - 1),) if per_edge else ()
        tables = (
            torch.eye(num_classes) + 0.3 * torch.randn(*lead, num_classes, num_classes) for _ in range(2)
        )
        return cls(torch.randn(side, side, num_classes), *tables)

    def problem(self) -> Arrays:
        """For a peer."""
        named = {"unary": self.unary, "horizontal": self.horizontal, "vertical": self.vertical}
        return {name: values.numpy() for name, values in named.items()} | {"iterations": np.array(ITERATIONS)}

    def runner(self) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        """Our forward pass, (H, W, K) marginals, and our forward + backward pass, the gradient of the unaries."""
        height, width, num_classes = self.unary.shape
        graph = grid_factor_graph(height, width, num_classes)
        unary = self.unary.permute(2, 0, 1)
        tables = [
            table.unflatten(0, block.shape) if table.ndim == 3 else table
            for block, table in zip(graph.blocks, (self.horizontal, self.vertical), strict=True)
        ]
        engine = BeliefPropagation(max_iterations=ITERATIONS, tolerance=None)

        def forward() -> Tensor:
            with torch.no_grad():
                return engine.run(graph, graph.potentials(unary, tables)).marginals.view(self.unary.shape)

        def train() -> Tensor:
            leaf = unary.detach().requires_grad_()
            result = engine.run(graph, graph.potentials(leaf, tables))
            (-result.log_marginals[..., 0].sum()).backward()  # type: ignore[no-untyped-call]
            assert leaf.grad is not None
            return leaf.grad.permute(1, 2, 0)

        return forward, train


def beside_pgmax(name: str, grid: Grid) -> dict[str, float]:
    """Ratios of PGMax's times to ours, and how much a backward pass adds to ours."""
    forward, train = grid.runner()
    ours = seconds({"forward": forward, "train": train}, turns=20, budget=30)
    ratios = {"train_vs_forward": ours["train"] / ours["forward"], "forward": ABSENT, "train": ABSENT}
    line = f"{name}: forward {1e3 * ours['forward']:.1f} ms, with backward {1e3 * ours['train']:.1f} ms"
    try:
        answer, theirs = PGMAX.solve(grid.problem())
    except Absent as reason:
        print(f"{line}; {reason}")
        return ratios
    apart = float((forward() - torch.from_numpy(answer["marginals"])).abs().max())
    slope = float((train() - torch.from_numpy(answer["gradient"])).abs().max())
    print(
        f"{line}; PGMax {1e3 * theirs['forward']:.0f} and {1e3 * theirs['train']:.0f} ms; "
        f"marginals differ by at most {apart:.0e}, gradients by {slope:.0e}"
    )
    return ratios | {key: theirs[key] / ours[key] for key in ("forward", "train")}


def beside_pgmpy() -> float:
    """Exact marginals of a 4×4 grid with 4 classes: pgmpy's time over ours."""
    grid = Grid.random(4, per_edge=True, num_classes=4)
    graph = grid_factor_graph(4, 4, 4)
    tables = [
        table.unflatten(0, block.shape)
        for block, table in zip(graph.blocks, (grid.horizontal, grid.vertical), strict=True)
    ]
    potentials = graph.potentials(grid.unary.permute(2, 0, 1), tables)
    ours = seconds({"exact": lambda: Exact().run(graph, potentials).marginals})["exact"]
    line = f"exact, 4×4 K=4: {1e3 * ours:.1f} ms"
    try:
        answer, theirs = PGMPY.solve(grid.problem())
    except Absent as reason:
        print(f"{line}; {reason}")
        return ABSENT
    apart = Exact().run(graph, potentials).marginals.view(grid.unary.shape) - torch.from_numpy(
        answer["marginals"]
    )
    print(
        f"{line}; pgmpy {1e3 * theirs['forward']:.0f} ms; marginals differ by at most {float(apart.abs().max()):.0e}"
    )
    return theirs["forward"] / ours


def scene(seed: int) -> tuple[Tensor, Tensor]:
    """A textured picture (3, H, W) in whole 255ths of 0..1, and noisy log-potentials (K, H, W) of its regions."""
    torch.manual_seed(seed)
    centres = torch.rand(40, 2) * torch.tensor([HEIGHT, WIDTH])
    rows, columns = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    places = torch.stack([rows, columns], -1).float()
    region = torch.cdist(places.view(-1, 2), centres).argmin(1).view(HEIGHT, WIDTH)
    light = 0.15 * torch.sin(places[..., 0] / 37)[None] * torch.cos(places[..., 1] / 53)[None]
    image = (torch.rand(40, 3)[region].permute(2, 0, 1) + light + 0.04 * torch.randn(3, HEIGHT, WIDTH)).clamp(
        0, 1
    )
    truth = torch.nn.functional.one_hot(region % NUM_CLASSES, NUM_CLASSES).permute(2, 0, 1)
    potentials = torch.log_softmax(2.0 * truth + 1.5 * torch.randn(NUM_CLASSES, HEIGHT, WIDTH), 0)
    return (255 * image).round() / 255, potentials


def beside_pydensecrf() -> dict[str, float]:
    """pydensecrf's time over ours, for one image and for each of a batch."""
    pairs = [scene(seed) for seed in range(BATCH)]
    images = torch.stack([image for image, _ in pairs])
    potentials = torch.stack([values for _, values in pairs]).contiguous(memory_format=torch.channels_last)
    engine = DenseMeanField(ITERATIONS)

    def run(count: int) -> Tensor:
        with torch.no_grad():
            return engine.run(DenseGraph(images[:count]), potentials[:count]).marginals

    ours = seconds({"one": lambda: run(1), "batch": lambda: run(BATCH)}, turns=5, budget=60)
    ours["batch"] /= BATCH
    traffic = NUM_CLASSES * HEIGHT * WIDTH * 4 / 1e6
    line = (
        f"dense CRF, {WIDTH}×{HEIGHT}: one image {1e3 * ours['one']:.0f} ms, in a batch of {BATCH} "
        f"{1e3 * ours['batch']:.0f} ms each (one pass over the beliefs is {traffic:.0f} MB)"
    )
    near, alike = DEEPLAB
    assert isinstance(near, Gaussian)
    assert isinstance(alike, Bilateral)
    problem = {
        "unary": potentials[0].contiguous().numpy(),
        "image": np.ascontiguousarray((255 * images[0]).round().byte().permute(1, 2, 0).numpy()),
        "w_near": np.array(near.weight),
        "s_near": np.array(near.position),
        "w_alike": np.array(alike.weight),
        "s_far": np.array(alike.position),
        "s_colour": np.array(alike.colour),
        "iterations": np.array(ITERATIONS),
    }
    try:
        answer, theirs = PYDENSECRF.solve(problem)
    except Absent as reason:
        print(f"{line}; {reason}")
        return {"one": ABSENT, "batch": ABSENT}
    same = (run(1)[0].argmax(0) == torch.from_numpy(answer["marginals"]).argmax(0)).float().mean()
    print(
        f"{line}; pydensecrf {1e3 * theirs['forward']:.0f} ms; {100 * float(same):.2f}% of the labels agree"
    )
    return {key: theirs["forward"] / ours[key] for key in ("one", "batch")}


LARGE = """
import resource, torch
from messagenet.graph.builders import grid_factor_graph
from messagenet.inference import BeliefPropagation
graph = grid_factor_graph(512, 512, 21)
potentials = graph.potentials(torch.randn(21, 512, 512), [torch.eye(21)] * 2)
with torch.no_grad():
    BeliefPropagation(max_iterations=10, tolerance=None).run(graph, potentials).marginals
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def large_grid() -> float:
    """Peak memory, in GiB, of a process that runs 10 iterations on a 512×512 grid."""
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = int(done.stdout) * unit / 2**30
    print(f"512×512, K={NUM_CLASSES}, 10 iterations: the process peaks at {peak:.2f} GiB")
    return peak


def bandwidth() -> float:
    """What one core copies, in GB/s read and written."""
    source = torch.empty(2**26)
    target = torch.empty_like(source)
    best = seconds({"copy": lambda: target.copy_(source)}, turns=5)["copy"]
    return 2 * source.nbytes / best / 1e9


def main() -> None:
    torch.set_num_threads(1)
    print(machine())
    print(f"one core copies {bandwidth():.1f} GB/s")
    bp64 = beside_pgmax("BP 64×64, one table", Grid.random(64, per_edge=False))
    bp128 = beside_pgmax("BP 128×128, one table", Grid.random(128, per_edge=False))
    edges = beside_pgmax("BP 64×64, a table per edge", Grid.random(64, per_edge=True))
    exact = beside_pgmpy()
    dense = beside_pydensecrf()
    finish(
        bp64_vs_pgmax=bp64["forward"],
        bp128_vs_pgmax=bp128["forward"],
        bp64_edge_tables_vs_pgmax=edges["forward"],
        bp_train_vs_forward=bp64["train_vs_forward"],
        bp_train_vs_pgmax=bp64["train"],
        bp_edge_tables_train_vs_pgmax=edges["train"],
        exact_vs_pgmpy=exact,
        densecrf_vs_pydensecrf=dense["one"],
        densecrf_batch_vs_pydensecrf=dense["batch"],
        bp512_peak_gib=large_grid(),
    )


if __name__ == "__main__":
    main()
