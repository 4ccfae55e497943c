"""Requests and responses of the HTTP interface, for its OpenAPI schema at `/openapi.json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from messagenet.graph.relations import Form

PixelBox = tuple[float, float, float, float]  # x0, y0, x1, y1 in pixels of the image


class ErrorResponse(BaseModel):
    """Any request that was refused."""

    error: str = Field(description="One line that says what is wrong and how to fix it.")


class Health(BaseModel):
    """The server is up."""

    status: Literal["ok"]
    version: str
    models: int = Field(description="How many models are on offer.")


class ClassInfo(BaseModel):
    """A class; its id is its index in the list."""

    name: str
    colour: str = Field(examples=["#400080"])


class RelationInfo(BaseModel):
    """A relation between nodes: which neighbours send messages."""

    name: str
    form: Form


class ModelInfo(BaseModel):
    """A model on offer."""

    id: str
    kind: str
    classes: list[ClassInfo]
    relations: list[RelationInfo]
    iterations: int = Field(description="T, the number of iterations; t = 0 is before messages.")
    explainable: bool = Field(description="Whether POST /explain takes it: it passes learned messages.")
    stride: float = Field(description="Pixels per node.")


class ModelList(BaseModel):
    """The models on offer."""

    models: list[ModelInfo]
    default: str = Field(description="The id that requests without a model use.")


class SampleList(BaseModel):
    """The sample images."""

    samples: list[str] = Field(description="Names for GET /samples/{name}.")


class IterationMaps(BaseModel):
    """Labels and uncertainty of all pixels after an iteration."""

    t: int
    labels: str = Field(description="Base64 of an 8-bit greyscale PNG; a value is a class id.")
    entropy: str = Field(description="Base64 of an 8-bit greyscale PNG: 0 is certain, 255 is log K nats.")
    shares: list[float] = Field(description="The share of pixels of each class.")
    changed: float = Field(description="The share of pixels whose label differs from t − 1.")


class Segmentation(BaseModel):
    """Labels and uncertainty of all pixels, before messages and after each iteration."""

    key: str = Field(description="The image's key for later requests.")
    model: str
    width: int = Field(description="Of the maps: the image's width, or less if it is very large.")
    height: int
    rows: int = Field(description="Rows of nodes.")
    columns: int
    stride: float = Field(description="Pixels per node.")
    maps: list[IterationMaps] = Field(description="For t = 0 … T.")
    milliseconds: float


class ExplainRequest(BaseModel):
    """A pixel to explain."""

    model_config = ConfigDict(extra="forbid")
    key: str = Field(max_length=64, description="The key of an image sent before.")
    model: str | None = Field(None, max_length=1000, description="Default: the first model.")
    x: FiniteFloat = Field(description="Pixels from the left edge.")
    y: FiniteFloat = Field(description="Pixels from the upper edge.")
    iteration: int | None = Field(None, description="t, 0 … T. Default: T.")


class Belief(BaseModel):
    """The belief of a node; the marginal is the softmax of the logits."""

    logits: list[float]
    marginal: list[float]


class IterationBelief(Belief):
    """The belief of a node after an iteration."""

    t: int


class NodeInfo(BaseModel):
    """A node and the box of its cell."""

    row: int
    column: int
    box: PixelBox


class FactorInfo(BaseModel):
    """The messages that a node receives from the factors of one type; the totals of all types sum to the logits."""

    name: str = Field(description='"unary", or the name of the relation.')
    total: list[float] = Field(description="The sum of the messages.")
    form: Form | None = Field(None, description="Relations only, like all that follow.")
    box: PixelBox | None = Field(None, description="Around the cells of all senders; null without senders.")
    senders: list[tuple[int, int]] = Field([], description="Row and column of each.")
    messages: list[list[float]] = Field([], description="Pairwise: one per sender. Box: one from all of them.")


class Explanation(BaseModel):
    """A node, its beliefs, and every message it receives in an iteration."""

    key: str
    model: str
    iteration: int
    pixel: tuple[float, float]
    node: NodeInfo
    unary: Belief = Field(description="Before messages, t = 0.")
    belief: Belief = Field(description="After the requested iteration.")
    beliefs: list[IterationBelief] = Field(description="For t = 0 … T.")
    factors: list[FactorInfo]
    milliseconds: float


_PROPERTIES = {
    "image": {"type": "string", "format": "binary", "description": "A JPEG, PNG, WebP or GIF file."},
    "key": {"type": "string", "description": "Instead: the key of an image sent before."},
    "model": {"type": "string", "description": "Default: the first model."},
    "iteration": {"type": "integer", "description": "The iteration of a PNG's labels; JSON has all. Default: T."},
}
_FORM = {"multipart/form-data": {"schema": {"type": "object", "properties": _PROPERTIES}}}
SEGMENT_FORM: dict[str, Any] = {"requestBody": {"required": True, "content": _FORM}}  # the route parses it
