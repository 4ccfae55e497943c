"""LiteRT (TensorFlow Lite): a quantised segmentation network on one photograph, on two threads."""

import sys

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from PIL import Image
from timing import finish, smallest

with np.load(sys.argv[1]) as problem:
    photo, network, threads = problem["photo"], str(problem["network"]), int(problem["threads"])

interpreter = Interpreter(network, num_threads=threads)
interpreter.allocate_tensors()
(given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
_, height, width, _ = given["shape"]


def predict():
    image = np.asarray(Image.fromarray(photo).resize((width, height), Image.Resampling.BILINEAR))
    interpreter.set_tensor(given["index"], image[None].astype(given["dtype"]))
    interpreter.invoke()
    return interpreter.get_tensor(made["index"])


answer = predict()
finish(sys.argv[2], {"predict": smallest(predict, turns=10)}, labels=answer)
