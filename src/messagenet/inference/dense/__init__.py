"""Fully connected CRFs on images: Gaussian kernels between all pixels, mean field in linear time."""

from messagenet.inference.dense.graph import DEEPLAB, Bilateral, DenseGraph, Gaussian, Kernel
from messagenet.inference.dense.mean_field import DenseMeanField

__all__ = ["DEEPLAB", "Bilateral", "DenseGraph", "DenseMeanField", "Gaussian", "Kernel"]
