"""Puts the meter into a parsed template: where jinja writes plain Python for an operation, a filter stands around it."""

from typing import Any

from jinja2 import nodes

#: Filters that a rewritten template uses; ``template_environment.py`` has what they do.
COUNTED, JOINED, SLICED, LOOKED = "_counted", "_joined", "_sliced", "_looked"


def metered(template: nodes.Template) -> nodes.Template:
    """Count the rounds of loops, measure what ``~`` and slices make, and look at the clock where long values are compared."""
    for loop in template.find_all(nodes.For):
        loop.iter = _filtered(loop.iter, COUNTED)
    _rewrite(template)
    return template


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


def _rewrite(node: Any) -> Any:
    for name, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            setattr(node, name, _rewrite(value))
        elif isinstance(value, list):
            setattr(node, name, [_rewrite(each) if isinstance(each, nodes.Node) else each for each in value])
        elif isinstance(value, tuple):
            setattr(node, name, tuple(_rewrite(each) if isinstance(each, nodes.Node) else each for each in value))
    if isinstance(node, nodes.Concat):
        whole = nodes.Tuple(node.nodes, "load", lineno=node.lineno, environment=node.environment)
        return _filtered(whole, JOINED)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _filtered(node, SLICED)
    if isinstance(node, nodes.Compare):
        _look_at_operands(node)
    elif isinstance(node, nodes.Test) and node.args:
        node.node = _filtered(node.node, LOOKED)
        node.args = [_filtered(each, LOOKED) for each in node.args]
    return node


def _look_at_operands(node: nodes.Compare) -> None:
    """Beside a constant of the template little is compared, unless it is looked for in a long value."""
    for operand in node.ops:
        if operand.op in ("in", "notin"):
            operand.expr = _filtered(operand.expr, LOOKED)
    if not all(isinstance(operand.expr, nodes.Const) for operand in node.ops):
        node.expr = _filtered(node.expr, LOOKED)
