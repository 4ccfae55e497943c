"""pydensecrf: mean field of the fully connected CRF on one image, including the construction of the lattices."""

import sys

import numpy as np
import pydensecrf.densecrf as dcrf
from timing import finish, fix_to_one_core, smallest

fix_to_one_core()
with np.load(sys.argv[1]) as problem:
    unary, image = problem["unary"], problem["image"]  # (K, H, W) log-potentials, (H, W, 3) bytes
    names = ("w_gaussian", "s_gaussian", "w_bilateral", "s_position", "s_colour")
    settings = {name: float(problem[name]) for name in names}
    iterations = int(problem["iterations"])
num_classes, height, width = unary.shape
energies = np.ascontiguousarray(-unary.reshape(num_classes, -1))


def marginals():
    crf = dcrf.DenseCRF2D(width, height, num_classes)
    crf.setUnaryEnergy(energies)
    crf.addPairwiseGaussian(sxy=settings["s_gaussian"], compat=settings["w_gaussian"])
    crf.addPairwiseBilateral(
        sxy=settings["s_position"], srgb=settings["s_colour"], rgbim=image, compat=settings["w_bilateral"]
    )
    return np.asarray(crf.inference(iterations)).reshape(unary.shape)


answer = marginals()
finish(sys.argv[2], {"forward": smallest(marginals)}, marginals=answer)
