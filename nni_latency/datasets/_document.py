"""The content of the file of a data set: what is in it, and the graphs of its networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from nni_latency.documents import DocumentFormat, NamedPlatformDocument, OperatorDocument, StrictDocument
from nni_latency.operators import Graph, TracedOperator


class NetworkDocument(StrictDocument):
    """A network at one batch size."""

    name: str
    family: str
    batch_size: PositiveInt
    graph: str = Field(
        pattern="^[0-9a-f]{32}$", description="its graph_key, after which the file of its graph is named"
    )
    seed: NonNegativeInt | None = None
    stage: str = ""
    has_onnx: bool = False


class RunDocument(StrictDocument):
    """What was measured on one platform at one batch size, and how."""

    platform: NamedPlatformDocument
    batch_size: PositiveInt
    protocol: dict[str, int | float] = Field(default_factory=dict)
    campaign: str = ""
    duration: NonNegativeFloat = 0.0
    conditions: dict[str, Any] = Field(default_factory=dict)
    failures: dict[str, str] = Field(default_factory=dict, description="by name of a network, why it cannot be run")


class LatencyDocument(StrictDocument):
    """What a network took in a run, in seconds."""

    network: NonNegativeInt = Field(description="its place in the list of networks")
    run: NonNegativeInt = Field(description="place in the list of runs")
    value: PositiveFloat
    low: NonNegativeFloat
    high: PositiveFloat
    n_samples: NonNegativeInt = 0
    n_visits: NonNegativeInt = 0
    repeatability: NonNegativeFloat = 0.0


class NetworksDocument(StrictDocument):
    """A data set of networks with latencies."""

    package_version: str | None = None
    runs: list[RunDocument]
    networks: list[NetworkDocument]
    latencies: list[LatencyDocument]


class NodeDocument(StrictDocument):
    """One operator of a graph."""

    name: str
    op: NonNegativeInt = Field(description="its place in the list of operators")
    sources: list[NonNegativeInt] = Field(default_factory=list)
    last_call: int = -1
    details: NonNegativeInt = Field(default=0, description="their place in the list of details")
    parameters: NonNegativeInt | None = Field(default=None, description="those that no operator before it takes")


class GraphDocument(StrictDocument):
    """The operators of a network, and which takes whose results; each kind of operator stands once."""

    n_calls: NonNegativeInt
    inputs: list[list[NonNegativeInt]]
    outputs: list[list[NonNegativeInt]]
    ops: list[OperatorDocument]
    details: list[dict[str, str]]
    nodes: list[NodeDocument]
    remarks: list[str] = Field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph) -> GraphDocument:
        """Make it of a graph."""
        ops = {item.op: None for item in graph.operators}
        details = {item.details: None for item in graph.operators}
        op_places = {op: place for place, op in enumerate(ops)}
        detail_places = {some: place for place, some in enumerate(details)}
        return cls(
            n_calls=graph.n_calls,
            inputs=[list(shape) for shape in graph.inputs],
            outputs=[list(shape) for shape in graph.outputs],
            ops=[OperatorDocument.model_validate(_plain(op.as_dict())) for op in ops],
            details=[dict(some) for some in details],
            nodes=[
                NodeDocument(
                    name=item.name,
                    op=op_places[item.op],
                    sources=list(item.sources),
                    last_call=item.last_call,
                    details=detail_places[item.details],
                    parameters=item.parameters,
                )
                for item in graph.operators
            ],
            remarks=list(graph.remarks),
        )

    def to_graph(self) -> Graph:
        """Make the graph.

        Raises
        ------
        ValueError, LookupError
            If an operator takes the result of one that follows, or of none.
        """
        ops = [item.to_op() for item in self.ops]
        details = [tuple(sorted(item.items())) for item in self.details]
        operators = []
        for place, node in enumerate(self.nodes):
            if any(source >= place for source in node.sources):
                raise ValueError(f"the operator {node.name!r} takes the result of one that follows")
            sources = tuple(node.sources)
            known = details[node.details]
            operators.append(TracedOperator(node.name, ops[node.op], sources, node.last_call, known, node.parameters))
        outputs, inputs = (tuple(map(tuple, shapes)) for shapes in (self.outputs, self.inputs))
        return Graph(tuple(operators), self.n_calls, outputs, inputs, tuple(self.remarks))


def _plain(value: Any) -> Any:
    """Return lists for tuples, as a file has them."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


NETWORKS = DocumentFormat(
    "nni_latency.networks",
    1,
    "data set",
    "a data set of networks",
    "measure one with 'nni-latency dataset measure'.",
    model=NetworksDocument,
)


def networks_schema() -> dict[str, Any]:
    """Return the JSON schema of what is in a data set, without its graphs."""
    return NETWORKS.schema()
