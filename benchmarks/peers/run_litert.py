"""LiteRT (TensorFlow Lite): a quantised segmentation network on one photo."""

import sys

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from PIL import Image
from timing import finish, smallest

with np.load(sys.argv[1]) as problem:
    photo, network, threads = problem["photo"], str(problem["network"]), int(problem["threads"])

interpreter = Interpreter(network, num_threads=threads)
interpreter.allocate_tensors()
(source,), (output,) = interpreter.get_input_details(), interpreter.get_output_details()
_, height, width, _ = source["shape"]


def predict():
    image = np.asarray(Image.fromarray(photo).resize((width, height), Image.Resampling.BILINEAR))
    interpreter.set_tensor(source["index"], image[None].astype(source["dtype"]))
    interpreter.invoke()
    return interpreter.get_tensor(output["index"])


answer = predict()
finish(sys.argv[2], {"predict": smallest(predict, turns=10)}, labels=answer)
