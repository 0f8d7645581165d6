from __future__ import annotations

import torch

from h3gnn.encoder import EncoderStack, FeatureMatrix, build_support
from h3gnn.encoder.noise import SequentialNoise
from h3gnn.encoder.tokens import whole_graph
from h3gnn.graphs.graph import Graph
from h3gnn.training.teacher import Teacher


def student_of(graph: Graph, models: int = 1) -> EncoderStack:
    entries = build_support(graph.edge_index, graph.num_nodes).entries
    encoder = EncoderStack(graph.num_features, 4, entries, heads=1, batch_norm=True, models=models)
    start = build_support(graph.edge_index, graph.num_nodes).start
    encoder.reset_parameters([torch.Generator().manual_seed(i) for i in range(models)], start)
    return encoder


def test_it_starts_as_the_student_and_follows_by_the_momentum(path_graph: Graph) -> None:
    student = student_of(path_graph)
    teacher = Teacher(student, [0.9])
    before = {name: value.clone() for name, value in teacher.encoder.state_dict().items()}
    for name, value in student.state_dict().items():
        assert torch.equal(before[name], value)
    with torch.no_grad():
        for value in (*student.parameters(), *student.buffers()):
            value.add_(1.0)
    teacher.update(student)
    for name, value in teacher.encoder.state_dict().items():
        torch.testing.assert_close(value, before[name] + 0.1, msg=name)


def test_each_model_of_a_stack_has_its_own_momentum(path_graph: Graph) -> None:
    student = student_of(path_graph, models=2)
    teacher = Teacher(student, [1.0, 0.0])
    before = teacher.encoder.linear_bias.clone()
    with torch.no_grad():
        student.linear_bias.add_(1.0)
    teacher.update(student)
    torch.testing.assert_close(teacher.encoder.linear_bias[0], before[0])
    torch.testing.assert_close(teacher.encoder.linear_bias[1], before[1] + 1)


def test_it_is_never_trained_and_stays_in_evaluation_mode(path_graph: Graph) -> None:
    teacher = Teacher(student_of(path_graph), [0.9])
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    teacher.train()
    assert not any(module.training for module in teacher.modules())
    live = Teacher(student_of(path_graph), [0.9], live=True)
    live.eval()
    assert all(module.training for module in live.modules())


def test_averaging_products_equals_multiplying_with_averaged_weights(path_graph: Graph) -> None:
    student = student_of(path_graph).double()
    features = FeatureMatrix(path_graph.dense_features().double())
    support = build_support(path_graph.edge_index, path_graph.num_nodes)
    part, nothing = whole_graph(features, support.to(features.device, torch.double), 2), SequentialNoise([])
    teacher = Teacher(student, [0.7])
    for _ in range(5):
        weights = teacher.encoder.edges(torch.ones(support.entries, dtype=torch.double), None)
        averaged = teacher(part, None, weights, student.project(part), nothing)
        assert teacher.products is not None  # it did not multiply with the features
        by_itself = teacher(part, None, weights, None, nothing)
        wanted = teacher.encoder.tokens(teacher.encoder.project(part), part, weights)
        torch.testing.assert_close(averaged.tokens, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(by_itself.tokens, wanted, rtol=1e-12, atol=1e-12)
        whole = teacher.encoder.fuse(wanted)[:, 1:3]
        torch.testing.assert_close(averaged.embedding(slice(1, 3)), whole, rtol=1e-12, atol=1e-12)
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(torch.randn_like(parameter))
        teacher.update(student)
