"""What requests and answers look like, for the description of the interface (OpenAPI)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat


class Failure(BaseModel):
    """Any refusal."""

    error: str = Field(description="One line that says what is wrong and how to fix it.")


class Health(BaseModel):
    """The server is there."""

    status: Literal["ok"]
    version: str
    models: int = Field(description="How many models are on offer.")


class ClassInfo(BaseModel):
    """A class; its id is its place in the list."""

    name: str
    colour: str = Field(examples=["#400080"])


class RelationInfo(BaseModel):
    """Which neighbours send messages."""

    name: str
    form: Literal["pairwise", "box"]


class ModelInfo(BaseModel):
    """A model on offer."""

    id: str
    kind: str
    classes: list[ClassInfo]
    relations: list[RelationInfo]
    iterations: int = Field(description="T; t = 0 is before messages.")
    explains: bool = Field(description="Whether POST /explain can be asked about it.")
    stride: float = Field(description="Pixels per node.")


class ModelList(BaseModel):
    """The models on offer."""

    models: list[ModelInfo]
    default: str


class SampleList(BaseModel):
    """The images on offer."""

    samples: list[str]


class IterationMaps(BaseModel):
    """What the pixels show after an iteration."""

    t: int
    labels: str = Field(description="Base64 of an 8-bit greyscale PNG; a value is a class id.")
    entropy: str = Field(description="Base64 of an 8-bit greyscale PNG: 0 is certain, 255 is log K nats.")
    shares: list[float] = Field(description="The share of pixels of each class.")
    changed: float = Field(description="The share of pixels whose label differs from t − 1.")


class Segmentation(BaseModel):
    """Labels and uncertainty of every pixel, before messages and after each iteration."""

    key: str = Field(description="What later requests call the image.")
    model: str
    width: int = Field(description="Of the maps: the image's own, or reduced where it is very large.")
    height: int
    rows: int = Field(description="Of nodes.")
    columns: int
    stride: float = Field(description="Pixels per node.")
    iterations: list[IterationMaps]
    milliseconds: float


class Question(BaseModel):
    """A pixel to explain."""

    model_config = ConfigDict(extra="forbid")

    key: str = Field(max_length=64, description="Of an image sent before.")
    model: str | None = Field(None, max_length=1000, description="The first model unless told.")
    x: FiniteFloat = Field(description="Pixels from the left edge.")
    y: FiniteFloat = Field(description="Pixels from the upper edge.")
    iteration: int | None = Field(None, description="t; the last one unless told.")


class Belief(BaseModel):
    """What a node believes; the marginal is the softmax of the logits."""

    logits: list[float]
    marginal: list[float]


class BeliefAt(Belief):
    """What a node believes after an iteration."""

    t: int


Box = tuple[float, float, float, float]


class NodeInfo(BaseModel):
    """A node and the pixels [x0, y0, x1, y1] of its cell."""

    row: int
    column: int
    box: Box


class Factor(BaseModel):
    """What a node hears through the factors of one type; the totals of all types sum to the logits."""

    name: str = Field(description='"unary", or the name of the relation.')
    total: list[float]
    form: Literal["pairwise", "box"] | None = Field(None, description="Relations only, as all that follows.")
    box: Box | None = Field(None, description="Pixels around all senders; null where nobody sends.")
    senders: list[tuple[int, int]] = Field([], description="Row and column of each.")
    values: list[list[float]] = Field(
        [], description="Pairwise: the message of each sender. Box: one message of all."
    )


class Explanation(BaseModel):
    """A node, what it believes, and every message it receives."""

    key: str
    model: str
    iteration: int
    pixel: tuple[float, float]
    node: NodeInfo
    unary: Belief
    after: Belief
    iterations: list[BeliefAt]
    factors: list[Factor]
    milliseconds: float


UPLOAD_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "image": {
                            "type": "string",
                            "format": "binary",
                            "description": "A JPEG, PNG, WebP or GIF file.",
                        },
                        "key": {"type": "string", "description": "Instead: the key of an image sent before."},
                        "model": {"type": "string", "description": "The first model unless told."},
                        "iteration": {
                            "type": "integer",
                            "description": "Which labels a PNG shows; JSON has all.",
                        },
                    },
                }
            }
        },
    }
}
