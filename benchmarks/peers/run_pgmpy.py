"""pgmpy: exact marginals by its belief propagation on a junction tree (it has none on loopy graphs)."""

import sys

import numpy as np
from pgmpy.factors.discrete import DiscreteFactor
from pgmpy.inference import BeliefPropagation
from pgmpy.models import MarkovNetwork
from timing import finish, fix_to_one_core, smallest

fix_to_one_core()
with np.load(sys.argv[1]) as problem:
    unary, horizontal, vertical = (problem[name] for name in ("unary", "horizontal", "vertical"))
height, width, num_classes = unary.shape

model = MarkovNetwork()
nodes = [(i, j) for i in range(height) for j in range(width)]
model.add_nodes_from(nodes)
factors = [DiscreteFactor([node], [num_classes], np.exp(unary[node])) for node in nodes]
across = [((i, j), (i, j + 1)) for i in range(height) for j in range(width - 1)]
down = [((i, j), (i + 1, j)) for i in range(height - 1) for j in range(width)]
for pairs, tables in ((across, horizontal), (down, vertical)):
    model.add_edges_from(pairs)
    shared = np.broadcast_to(tables, (len(pairs), num_classes, num_classes))
    factors += [
        DiscreteFactor(list(pair), [num_classes] * 2, np.exp(table)) for pair, table in zip(pairs, shared, strict=True)
    ]
model.add_factors(*factors)


def marginals():
    bp = BeliefPropagation(model)
    bp.calibrate()
    return np.stack([bp.query([node], show_progress=False).values for node in nodes])


answer = marginals().reshape(unary.shape)
finish(sys.argv[2], {"forward": smallest(marginals, turns=2)}, marginals=answer)
