"""Computed messages against other libraries: belief propagation on grids, exact inference, the dense CRF.

Grids: 64×64 and 128×128, K = 21, 10 synchronous iterations, with one table for all edges and with one per edge, forward
and forward + backward, against PGMax (JAX). Exact marginals of a small grid against pgmpy, which has no belief
propagation on loopy graphs. Dense CRF: 500×375, K = 21, 10 iterations, construction of the lattice included, one image
and a batch of eight, against pydensecrf. One thread and float32 everywhere. Peers are installed into their own
environments on first use; one that does not install is reported as absent. Results are compared as well as times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common import QUICK, finish, isolated, peak_memory, seconds, start
from messagenet.graph.builders import grid_factor_graph
from messagenet.graph.factor_graph import Potentials
from messagenet.graph.grid import GridFactorGraph
from messagenet.inference import BeliefPropagation, Engine, Exact
from messagenet.inference.dense import DEEPLAB, Bilateral, DenseGraph, DenseMeanField, Gaussian
from peer_environments import Absent, Arrays, Peer

PGMAX = Peer("pgmax", ("pgmax==0.6.1", "jax==0.4.30", "jaxlib==0.4.30", "numpy<2"))
PGMPY = Peer("pgmpy", ("pgmpy==0.1.26", "torch==2.13.0"))
PYDENSECRF = Peer("pydensecrf2", ("pydensecrf2==1.1", "numpy"))
NUM_CLASSES, ITERATIONS = (3, 2) if QUICK else (21, 10)
SIDE, LARGE_SIDE, MEMORY_SIDE = (6, 8, 10) if QUICK else (64, 128, 512)
HEIGHT, WIDTH, BATCH = (24, 32, 2) if QUICK else (375, 500, 8)
COPIED_FLOATS = 2**10 if QUICK else 2**26
ENGINE = BeliefPropagation(max_iterations=ITERATIONS, tolerance=None)
ABSENT = math.nan


@dataclass
class Grid:
    """Log-potentials of a 4-connected grid.

    Attributes:
        unary: (H, W, K).
        horizontal: (K, K) or (edges, K, K), of each node and the next in its row.
        vertical: The same for the next in its column.
    """

    unary: Tensor
    horizontal: Tensor
    vertical: Tensor

    @classmethod
    def random(cls, side: int, *, per_edge: bool, num_classes: int = NUM_CLASSES) -> Grid:
        """Moderate couplings that favour equal neighbours."""
        torch.manual_seed(side)
        lead = (side * (side - 1),) if per_edge else ()
        tables = (torch.eye(num_classes) + 0.3 * torch.randn(*lead, num_classes, num_classes) for _ in range(2))
        return cls(torch.randn(side, side, num_classes), *tables)

    def problem(self) -> Arrays:
        """Returns the arrays that a peer's script reads."""
        tensors = {"unary": self.unary, "horizontal": self.horizontal, "vertical": self.vertical}
        return {name: values.numpy() for name, values in tensors.items()} | {"iterations": np.array(ITERATIONS)}

    @cached_property
    def graph(self) -> GridFactorGraph:
        """The factor graph; not part of any time."""
        return grid_factor_graph(*self.unary.shape)

    def potentials(self, unary: Tensor) -> Potentials:
        """Log-potentials as our engines take them, with given unaries (K, H, W)."""
        tables = [
            table.unflatten(0, block.shape) if table.ndim == 3 else table
            for block, table in zip(self.graph.blocks, (self.horizontal, self.vertical), strict=True)
        ]
        return self.graph.potentials(unary, tables)

    @torch.no_grad()
    def marginals(self, engine: Engine = ENGINE) -> Tensor:
        """The forward pass: marginals (H, W, K)."""
        potentials = self.potentials(self.unary.permute(2, 0, 1))
        return engine.run(self.graph, potentials).marginals.view(self.unary.shape)

    def gradient(self) -> Tensor:
        """The forward and backward pass: the gradient of the unaries, (H, W, K)."""
        leaf = self.unary.permute(2, 0, 1).detach().requires_grad_()
        log_marginals = ENGINE.run(self.graph, self.potentials(leaf)).log_marginals
        (gradient,) = torch.autograd.grad(-log_marginals[..., 0].sum(), leaf)
        return gradient.permute(1, 2, 0)


def max_difference(ours: Tensor, theirs: npt.NDArray[np.float32]) -> str:
    """The largest absolute difference, as text."""
    return f"{float((ours - torch.from_numpy(theirs)).abs().max()):.0e}"


def solve(peer: Peer, problem: Arrays, line: str) -> tuple[Arrays, dict[str, float]] | None:
    """Returns a peer's answer and times. If it is absent, prints the line about us with the reason."""
    try:
        return peer.solve(problem)
    except Absent as reason:
        print(f"{line}; {reason}")
        return None


def compare_pgmax(name: str, grid: Grid) -> dict[str, float]:
    """Returns PGMax's times over ours, and the ratio of our forward + backward to our forward pass."""
    ours = seconds({"forward": grid.marginals, "train": grid.gradient}, turns=20, budget=30)
    ratios = {"train_vs_forward": ours["train"] / ours["forward"], "forward": ABSENT, "train": ABSENT}
    size = f"{grid.unary.shape[0]}×{grid.unary.shape[1]}"
    line = f"BP {size}, {name}: forward {1e3 * ours['forward']:.1f} ms, with backward {1e3 * ours['train']:.1f} ms"
    if (solved := solve(PGMAX, grid.problem(), line)) is None:
        return ratios
    answer, theirs = solved
    print(
        f"{line}; PGMax {1e3 * theirs['forward']:.0f} and {1e3 * theirs['train']:.0f} ms; "
        f"marginals differ by at most {max_difference(grid.marginals(), answer['marginals'])}, "
        f"gradients by {max_difference(grid.gradient(), answer['gradient'])}"
    )
    return ratios | {key: theirs[key] / ours[key] for key in ("forward", "train")}


def compare_pgmpy() -> float:
    """Exact marginals of a 4×4 grid with 4 classes: returns pgmpy's time over ours."""
    grid = Grid.random(4, per_edge=True, num_classes=4)
    ours = seconds({"exact": lambda: grid.marginals(Exact())})["exact"]
    line = f"exact, 4×4 K=4: {1e3 * ours:.1f} ms"
    if (solved := solve(PGMPY, grid.problem(), line)) is None:
        return ABSENT
    answer, theirs = solved
    difference = max_difference(grid.marginals(Exact()), answer["marginals"])
    print(f"{line}; pgmpy {1e3 * theirs['forward']:.0f} ms; marginals differ by at most {difference}")
    return theirs["forward"] / ours


def scene(seed: int) -> tuple[Tensor, Tensor]:
    """A textured 8-bit image (3, H, W) scaled to 0..1, and noisy log-potentials (K, H, W) of its regions."""
    torch.manual_seed(seed)
    centres = torch.rand(40, 2) * torch.tensor([HEIGHT, WIDTH])
    rows, columns = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    pixels = torch.stack([rows, columns], -1).float()
    region = torch.cdist(pixels.view(-1, 2), centres).argmin(1).view(HEIGHT, WIDTH)
    light = 0.15 * torch.sin(pixels[..., 0] / 37)[None] * torch.cos(pixels[..., 1] / 53)[None]
    colours = torch.rand(40, 3)[region].permute(2, 0, 1)
    image = (colours + light + 0.04 * torch.randn(3, HEIGHT, WIDTH)).clamp(0, 1)
    target = torch.nn.functional.one_hot(region % NUM_CLASSES, NUM_CLASSES).permute(2, 0, 1)
    potentials = torch.log_softmax(2.0 * target + 1.5 * torch.randn(NUM_CLASSES, HEIGHT, WIDTH), 0)
    return (255 * image).round() / 255, potentials


def compare_pydensecrf() -> dict[str, float]:
    """Returns pydensecrf's time over ours, for one image and per image of a batch."""
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
    gaussian, bilateral = DEEPLAB
    assert isinstance(gaussian, Gaussian)
    assert isinstance(bilateral, Bilateral)
    problem = {
        "unary": potentials[0].contiguous().numpy(),
        "image": np.ascontiguousarray((255 * images[0]).round().byte().permute(1, 2, 0).numpy()),
        "w_gaussian": np.array(gaussian.weight),
        "s_gaussian": np.array(gaussian.position),
        "w_bilateral": np.array(bilateral.weight),
        "s_position": np.array(bilateral.position),
        "s_colour": np.array(bilateral.colour),
        "iterations": np.array(ITERATIONS),
    }
    if (solved := solve(PYDENSECRF, problem, line)) is None:
        return {"one": ABSENT, "batch": ABSENT}
    answer, theirs = solved
    same = (run(1)[0].argmax(0) == torch.from_numpy(answer["marginals"]).argmax(0)).float().mean()
    print(f"{line}; pydensecrf {1e3 * theirs['forward']:.0f} ms; {100 * float(same):.2f}% of the labels agree")
    return {key: theirs["forward"] / ours[key] for key in ("one", "batch")}


def peak_of_large_grid() -> float:
    """Returns the peak memory, in GiB, of a process that runs belief propagation on a large grid."""
    Grid(torch.randn(MEMORY_SIDE, MEMORY_SIDE, NUM_CLASSES), *[torch.eye(NUM_CLASSES)] * 2).marginals()
    return peak_memory()


def bandwidth() -> float:
    """Returns the copy bandwidth of one core, in GB/s read and written."""
    source = torch.empty(COPIED_FLOATS)
    target = torch.empty_like(source)
    best = seconds({"copy": lambda: target.copy_(source)}, turns=5)["copy"]
    return 2 * source.nbytes / best / 1e9


def main() -> None:
    torch.set_num_threads(1)
    start(__doc__)
    print(f"one core copies {bandwidth():.1f} GB/s")
    bp64 = compare_pgmax("one table", Grid.random(SIDE, per_edge=False))
    bp128 = compare_pgmax("one table", Grid.random(LARGE_SIDE, per_edge=False))
    edges = compare_pgmax("a table per edge", Grid.random(SIDE, per_edge=True))
    exact = compare_pgmpy()
    dense = compare_pydensecrf()
    peak = isolated(peak_of_large_grid)
    print(f"BP {MEMORY_SIDE}×{MEMORY_SIDE}, one table: the process peaks at {peak:.2f} GiB")
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
        bp512_peak_gib=peak,
    )


if __name__ == "__main__":
    main()
