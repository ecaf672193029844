# SPDX-License-Identifier: Apache-2.0
"""Branches, loops, scans and functions of ONNX files: counted as often as they run, and what is assumed is said."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_files import BOOL, FLOAT, INT64, constant, save, value

from nni_latency.errors import InvalidValueError
from nni_latency.operators import count_graph, features_of, onnx_network, read_onnx

helper = onnx.helper


def product(taken, made, weight="w"):
    return helper.make_node("MatMul", [taken, weight], [made])


def looped(trips, condition="true", ends="true"):
    """Return a loop whose body is a product of 4x4 and a sum with the number of the iteration."""
    body = helper.make_graph(
        [
            product("x", "y"),
            helper.make_node("Identity", [ends], ["again"]),
            helper.make_node("Relu", ["y"], ["each"]),
        ],
        "body",
        [value("i", kind=INT64), value("going", kind=BOOL), value("x", 2, 4)],
        [value("again", kind=BOOL), value("y", 2, 4), value("each", 2, 4)],
    )
    return helper.make_node("Loop", [trips, condition, "a"], ["b", "all"], body=body, name="loop")


WEIGHTS = (constant("w", np.ones((4, 4))), constant("true", True, bool), constant("false", False, bool))


def test_loop_runs_as_often_as_a_constant_says(tmp_path):
    path = save(
        tmp_path / "net.onnx",
        [looped("trips")],
        [value("a", 2, 4)],
        [value("b", 2, 4), value("all", "n", 2, 4)],
        (*WEIGHTS, constant("trips", 100, np.int64)),
    )
    graph = read_onnx(path)
    counted = count_graph(graph)
    assert counted.features.macs == 100 * 2 * 4 * 4
    assert counted.features.params == 16
    assert graph.outputs == ((2, 4), (100, 2, 4))
    assert graph.remarks == ()
    assert graph.operators[2].sources == (0,), "an iteration takes what the one before it returned"


def test_loop_that_ends_by_its_condition_ends(tmp_path):
    nodes = [looped("", ends="false")]
    path = save(tmp_path / "net.onnx", nodes, [value("a", 2, 4)], [value("b", 2, 4)], WEIGHTS)
    assert count_graph(read_onnx(path)).features.macs == 2 * 4 * 4


def test_loop_that_never_begins_returns_what_it_was_given(tmp_path):
    path = save(
        tmp_path / "net.onnx",
        [looped("trips"), helper.make_node("Relu", ["b"], ["c"])],
        [value("a", 2, 4)],
        [value("c", 2, 4)],
        (*WEIGHTS, constant("trips", 0, np.int64)),
    )
    assert [item.op.kind for item in read_onnx(path).operators] == ["relu"]


@pytest.mark.parametrize(("trips", "ends"), [("n", "true"), ("endless", "stop"), ("", "stop")])
def test_loop_whose_end_depends_on_data_is_counted_once(tmp_path, trips, ends):
    inputs = [value("a", 2, 4), value("n", kind=INT64), value("stop", kind=BOOL)]
    weights = (*WEIGHTS, constant("endless", 2**63 - 1, np.int64))
    graph = read_onnx(save(tmp_path / "net.onnx", [looped(trips, ends=ends)], inputs, [value("b", 2, 4)], weights))
    assert count_graph(graph).features.macs == 2 * 4 * 4
    assert graph.remarks == ("how often the loop loop runs depends on data: it is counted once",)


def test_loop_that_may_end_early_is_counted_in_full(tmp_path):
    inputs, weights = [value("a", 2, 4), value("stop", kind=BOOL)], (*WEIGHTS, constant("trips", 3, np.int64))
    path = save(tmp_path / "net.onnx", [looped("trips", ends="stop")], inputs, [value("b", 2, 4)], weights)
    graph = read_onnx(path)
    assert count_graph(graph).features.macs == 3 * 2 * 4 * 4
    assert graph.remarks == ("the loop loop may end early: it is counted in full",)


def test_shapes_may_change_in_every_iteration(tmp_path):
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["again"]), helper.make_node("Concat", ["x", "x"], ["y"], axis=0)],
        "body",
        [value("i", kind=INT64), value("going", kind=BOOL), value("x", None, 4)],
        [value("again", kind=BOOL), value("y", None, 4)],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "a"], ["b"], body=body), product("b", "c")]
    weights = (*WEIGHTS, constant("trips", 3, np.int64))
    graph = read_onnx(save(tmp_path / "net.onnx", nodes, [value("a", 2, 4)], [value("c", None, 4)], weights))
    assert graph.outputs == ((16, 4),)
    assert count_graph(graph).features.macs == 16 * 4 * 4


def test_loops_that_run_too_much_are_refused(tmp_path, monkeypatch):
    # Private: 100,000 operators would take too long.
    monkeypatch.setattr("nni_latency.operators._onnx_walk._MOST_OPERATORS", 500)
    inner = looped("trips")
    for _ in range(4):
        body = helper.make_graph(
            [inner, helper.make_node("Identity", ["true"], ["again"])],
            "outer",
            [value("i", kind=INT64), value("going", kind=BOOL), value("a", 2, 4)],
            [value("again", kind=BOOL), value("b", 2, 4)],
        )
        inner = helper.make_node("Loop", ["trips", "true", "a"], ["b"], body=body, name="loop")
    weights = (*WEIGHTS, constant("trips", 10_000, np.int64))
    path = save(tmp_path / "net.onnx", [inner], [value("a", 2, 4)], [value("b", 2, 4)], weights)
    with pytest.raises(
        InvalidValueError, match=r"net\.onnx' runs more than 500 operators, .* The last one is 'loop\[0\]"
    ):
        read_onnx(path)


def test_scan_runs_once_a_step(tmp_path):
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "x"], ["sum"]), product("sum", "next")],
        "body",
        [value("state", 2, 4), value("x", 2, 4)],
        [value("next", 2, 4), value("sum", 2, 4)],
    )
    node = helper.make_node("Scan", ["h", "xs"], ["last", "sums"], body=body, num_scan_inputs=1)
    inputs, outputs = [value("h", 2, 4), value("xs", 7, 2, 4)], [value("last", 2, 4), value("sums", 7, 2, 4)]
    graph = read_onnx(save(tmp_path / "net.onnx", [node], inputs, outputs, WEIGHTS))
    assert count_graph(graph).features.macs == 7 * 2 * 4 * 4
    assert graph.outputs == ((2, 4), (7, 2, 4))


@pytest.mark.parametrize(
    ("given", "scanned", "axes", "complaint"),
    [
        (["h", "xs", "xs"], 1, None, "it has 3 inputs, and its body takes 2"),
        (["h", "xs"], 3, None, "it has 2 inputs, of which it scans 3 along 3 axes"),
        (["h", "xs"], 1, [0, 0], "it has 2 inputs, of which it scans 1 along 2 axes"),
    ],
)
def test_scan_of_other_inputs_than_its_own_is_refused(tmp_path, given, scanned, axes, complaint):
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "x"], ["next"])],
        "body",
        [value("state", 2, 4), value("x", 2, 4)],
        [value("next", 2, 4)],
    )
    more = {} if axes is None else {"scan_input_axes": axes}
    node = helper.make_node("Scan", given, ["last"], body=body, num_scan_inputs=scanned, **more)
    inputs, outputs = [value("h", 2, 4), value("xs", 7, 2, 4)], [value("last", 2, 4)]
    with pytest.raises(InvalidValueError, match=rf"an operator Scan, is not valid: {complaint}\."):
        read_onnx(save(tmp_path / "net.onnx", [node], inputs, outputs, WEIGHTS))


def branches(condition):
    small = helper.make_graph([helper.make_node("Relu", ["a"], ["small"])], "then", [], [value("small", 2, 4)])
    large = helper.make_graph(
        [product("a", "inner", "own"), helper.make_node("Exp", ["inner"], ["large"])],
        "else",
        [],
        [value("large", 2, 4)],
        [constant("own", np.ones((4, 4)))],
    )
    return helper.make_node("If", [condition], ["b"], then_branch=small, else_branch=large, name="choice")


def test_branch_that_is_known_is_the_one_that_runs(tmp_path):
    for condition, kinds in (("true", ["relu"]), ("false", ["linear", "exp"])):
        path = save(tmp_path / "net.onnx", [branches(condition)], [value("a", 2, 4)], [value("b", 2, 4)], WEIGHTS)
        graph = read_onnx(path)
        assert [item.op.kind for item in graph.operators] == kinds
        assert graph.remarks == ()


def test_of_branches_that_depend_on_data_the_dearer_is_counted(tmp_path):
    inputs = [value("a", 2, 4), value("asked", kind=BOOL)]
    nodes = [branches("asked"), helper.make_node("Relu", ["b"], ["c"])]
    graph = read_onnx(save(tmp_path / "net.onnx", nodes, inputs, [value("c", 2, 4)], WEIGHTS))
    kinds = [("linear", ()), ("exp", (0,)), ("if", (1,)), ("relu", (2,))]
    assert [(item.op.kind, item.sources) for item in graph.operators] == kinds
    assert {item.last_call for item in graph.operators[:3]} == {0}
    assert count_graph(graph).features.params == 16
    assert graph.remarks == ("which branch of choice runs depends on data: the dearer one is counted",)


def test_all_results_of_a_branch_are_passed_on(tmp_path):
    def branch(kind):
        nodes = [
            helper.make_node("Constant", [], [f"{kind}_n"], value_int=len(kind)),
            helper.make_node(kind, ["a"], [f"{kind}_map"]),
        ]
        return helper.make_graph(nodes, kind, [], [value(f"{kind}_n", kind=INT64), value(f"{kind}_map", 2, 4)])

    choice = helper.make_node("If", ["asked"], ["n", "map"], then_branch=branch("Relu"), else_branch=branch("Exp"))
    nodes = [choice, helper.make_node("Cast", ["n"], ["m"], to=FLOAT), helper.make_node("Mul", ["map", "m"], ["b"])]
    inputs = [value("a", 2, 4), value("asked", kind=BOOL)]
    graph = read_onnx(save(tmp_path / "net.onnx", nodes, inputs, [value("b", 2, 4)]))
    chosen, product = graph.operators[1], graph.operators[-1]
    assert (chosen.op.kind, chosen.op.input_shapes, chosen.op.dtype) == ("if", ((), (2, 4)), "float32")
    assert (features_of(chosen.op).inputs, features_of(chosen.op).outputs) == (9, 9)
    assert 1 in product.sources


def test_choices_inside_of_functions_loops_and_branches_have_their_names(tmp_path):
    """A choice of sequences in a branch, in a function, in a loop."""

    def branch(name, *nodes):
        made = helper.make_tensor_sequence_value_info(name, FLOAT, None)
        return helper.make_graph(list(nodes), name, [], [made])

    one = branch("one", helper.make_node("SequenceConstruct", ["i"], ["one"]))
    two = branch("two", helper.make_node("Exp", ["i"], ["e"]), helper.make_node("SequenceConstruct", ["e"], ["two"]))
    inner = helper.make_node("If", ["k"], ["chosen"], then_branch=one, else_branch=two, name="inner")
    both = branch("both", inner, helper.make_node("Identity", ["chosen"], ["both"]))
    other = branch("other", helper.make_node("SequenceConstruct", ["i"], ["other"]))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    nodes = [
        helper.make_node("If", ["k"], ["some"], then_branch=both, else_branch=other, name="outer"),
        helper.make_node("ConcatFromSequence", ["some"], ["o"], axis=0),
    ]
    function = helper.make_function("com.example", "Choose", ["i", "k"], ["o"], nodes, opsets)
    body = helper.make_graph(
        [
            helper.make_node("Choose", ["x", "asked"], ["y"], domain="com.example", name="choose"),
            helper.make_node("Identity", ["going"], ["again"]),
        ],
        "body",
        [value("n", kind=INT64), value("going", kind=BOOL), value("x", 2, 4)],
        [value("again", kind=BOOL), value("y", 2, 4)],
    )
    loop = helper.make_node("Loop", ["trips", "true", "a"], ["b"], body=body, name="loop")
    inputs, weights = [value("a", 2, 4), ASKED], (*WEIGHTS, constant("trips", 2, np.int64))
    graph = read_onnx(save(tmp_path / "net.onnx", [loop], inputs, [value("b", 2, 4)], weights, [function]))
    chosen = [item.name for item in graph.operators if item.op.kind == "if"]
    each = ["loop[{}].choose.outer.inner", "loop[{}].choose.outer"]
    assert chosen == [name.format(number) for number in range(2) for name in each]
    assert {item.last_call for item in graph.operators} == {0}
    assert all(source < number for number, item in enumerate(graph.operators) for source in item.sources)


def test_branch_that_cannot_run_with_these_sizes_is_not_taken(tmp_path):
    wide = helper.make_graph([product("a", "wide", "eight")], "then", [], [value("wide", 2, 4)])
    narrow = helper.make_graph([helper.make_node("Relu", ["a"], ["narrow"])], "else", [], [value("narrow", 2, 4)])
    node = helper.make_node("If", ["asked"], ["b"], then_branch=wide, else_branch=narrow, name="choice")
    weights = (constant("eight", np.ones((8, 4))),)
    inputs = [value("a", 2, 4), value("asked", kind=BOOL)]
    graph = read_onnx(save(tmp_path / "net.onnx", [node], inputs, [value("b", 2, 4)], weights))
    assert [item.op.kind for item in graph.operators] == ["relu", "if"]
    assert "the one that can run with inputs of these sizes" in graph.remarks[0]


def by_size(name, taken):
    """Return a choice between a product that takes eight columns and an activation that takes any number."""
    wide = helper.make_graph(
        [helper.make_node("MatMul", [taken, "eight"], ["wide"])], "then", [], [value("wide", None, None)]
    )
    other = helper.make_graph([helper.make_node("Relu", [taken], ["other"])], "else", [], [value("other", None, None)])
    return helper.make_node("If", ["asked"], [name], then_branch=wide, else_branch=other, name="choice")


EIGHT = constant("eight", np.ones((8, 4)))
ASKED = value("asked", kind=BOOL)


@pytest.mark.parametrize("is_asked", [True, False])
def test_branch_for_other_sizes_does_not_keep_a_network_from_running(tmp_path, is_asked):
    """Runtimes infer the shapes of both branches: of 8 kHz and of 16 kHz, in a network that takes both."""
    inputs, outputs = [value("a", 2, 4), ASKED], [value("b", None, None)]
    path = save(tmp_path / "net.onnx", [by_size("b", "a")], inputs, outputs, [EIGHT])
    with pytest.raises(onnx.shape_inference.InferenceError):
        onnx.shape_inference.infer_shapes(onnx.load(path), check_type=True, strict_mode=True, data_prop=True)
    network = onnx_network(path)
    onnx.shape_inference.infer_shapes(network.model, check_type=True, strict_mode=True, data_prop=True)
    taken = np.array([[-1, 2, -3, 4], [5, -6, 7, -8]], np.float32)
    (found,) = ReferenceEvaluator(network.model).run(None, network.feed([taken, np.array(is_asked)]))
    assert found.tolist() == [[0, 2, 0, 4], [5, 0, 7, 0]]


def test_branches_that_can_run_stay(tmp_path):
    kinds = {}
    for size in (4, 8):
        path = tmp_path / f"{size}.onnx"
        save(path, [by_size("b", "a")], [value("a", 2, size), ASKED], [value("b", None, None)], [EIGHT])
        (node,) = onnx_network(path).model.graph.node
        kinds[size] = [item.g.node[0].op_type for item in node.attribute]
    assert sorted(kinds[8]) == ["MatMul", "Relu"]
    assert kinds[4] == ["Relu", "Relu"]


def test_branch_that_fits_in_a_later_iteration_stays(tmp_path):
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["again"]),
            by_size("chosen", "x"),
            helper.make_node("Concat", ["x", "x"], ["y"], axis=1),
        ],
        "body",
        [value("i", kind=INT64), value("going", kind=BOOL), value("x", 2, None)],
        [value("again", kind=BOOL), value("y", 2, None)],
    )
    node = helper.make_node("Loop", ["trips", "", "a"], ["b"], body=body)
    weights = [EIGHT, constant("trips", 2, np.int64)]
    path = save(tmp_path / "net.onnx", [node], [value("a", 2, 4), ASKED], [value("b", 2, None)], weights)
    (choice,) = (item for item in onnx_network(path).model.graph.node[0].attribute[0].g.node if item.op_type == "If")
    assert sorted(item.g.node[0].op_type for item in choice.attribute) == ["MatMul", "Relu"]


def test_local_functions_are_expanded_with_their_attributes(tmp_path):
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    leaky = helper.make_node("LeakyRelu", ["m"], ["o"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    layer = helper.make_function(
        "com.example", "Layer", ["i", "k"], ["o"], [product("i", "m", "k"), leaky], opsets, ["slope"]
    )
    twice = helper.make_function(
        "com.example",
        "Twice",
        ["i", "k"],
        ["o"],
        [
            helper.make_node("Layer", ["i", "k"], ["m"], domain="com.example", slope=0.1, name="one"),
            helper.make_node("Layer", ["m", "k"], ["o"], domain="com.example", slope=0.2, name="two"),
        ],
        opsets,
    )
    node = helper.make_node("Twice", ["a", "w"], ["b"], domain="com.example", name="both")
    path = save(tmp_path / "net.onnx", [node], [value("a", 2, 4)], [value("b", 2, 4)], WEIGHTS, [layer, twice])
    graph = read_onnx(path)
    assert [item.name for item in graph.operators] == ["both.one.m", "both.one.o", "both.two.m", "both.two.o"]
    assert [dict(item.details).get("alpha", "")[:4] for item in graph.operators] == ["", "0.10", "", "0.20"]
    assert {item.last_call for item in graph.operators} == {0}
    features = count_graph(graph).features
    assert (features.macs, features.params) == (2 * 2 * 4 * 4, 16)


def test_function_that_calls_itself_is_refused(tmp_path):
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    inner = helper.make_node("Again", ["i"], ["o"], domain="com.example", name="again")
    function = helper.make_function("com.example", "Again", ["i"], ["o"], [inner], opsets)
    node = helper.make_node("Again", ["a"], ["b"], domain="com.example", name="first")
    path = save(tmp_path / "net.onnx", [node], [value("a", 2, 4)], [value("b", 2, 4)], (), [function])
    with pytest.raises(InvalidValueError, match="is inside of more than 50 functions and loops"):
        read_onnx(path)


def test_operators_that_onnx_defines_by_others_are_taken_apart(tmp_path):
    node = helper.make_node("MeanVarianceNormalization", ["a"], ["b"], name="norm")
    path = save(tmp_path / "net.onnx", [node], [value("a", 1, 3, 4, 4)], [value("b", 1, 3, 4, 4)], opset=13)
    graph = read_onnx(path)
    assert "mean" in {item.op.kind for item in graph.operators}
    assert not count_graph(graph).uncounted
    assert graph.outputs == ((1, 3, 4, 4),)
