"""PGMax: loopy belief propagation on a 4-connected grid, and its gradient with respect to the unary potentials."""

import sys

import jax
import numpy as np
from pgmax import fgraph, fgroup, infer, vgroup
from timing import finish, fix_to_one_core, smallest

fix_to_one_core()
with np.load(sys.argv[1]) as problem:
    unary, horizontal, vertical = (problem[name] for name in ("unary", "horizontal", "vertical"))
    iterations = int(problem["iterations"])
height, width, num_classes = unary.shape

variables = vgroup.NDVarArray(num_states=num_classes, shape=(height, width))
graph = fgraph.FactorGraph(variable_groups=variables)
across = [[variables[i, j], variables[i, j + 1]] for i in range(height) for j in range(width - 1)]
down = [[variables[i, j], variables[i + 1, j]] for i in range(height - 1) for j in range(width)]
for pairs, tables in ((across, horizontal), (down, vertical)):
    graph.add_factors(fgroup.PairwiseFactorGroup(variables_for_factors=pairs, log_potential_matrix=tables))
bp = infer.build_inferer(graph.bp_state, backend="bp")


def beliefs(evidence):
    arrays = bp.init(evidence_updates={variables: evidence})
    arrays = bp.run(arrays, num_iters=iterations, damping=0.0, temperature=1.0)
    return bp.get_beliefs(arrays)[variables]


def marginals(evidence):
    return jax.nn.softmax(beliefs(evidence), axis=-1)


def loss(evidence):
    return -jax.nn.log_softmax(beliefs(evidence), axis=-1)[..., 0].sum()


forward, gradient = jax.jit(marginals), jax.jit(jax.value_and_grad(loss))
answer = np.asarray(forward(unary).block_until_ready())
slope = np.asarray(gradient(unary)[1].block_until_ready())
times = {
    "forward": smallest(lambda: forward(unary).block_until_ready()),
    "train": smallest(lambda: gradient(unary)[1].block_until_ready()),
}
finish(sys.argv[2], times, marginals=answer, gradient=slope)
