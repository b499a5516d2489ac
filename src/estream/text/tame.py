"""Which chat templates are rendered in this process: those that use nothing whose cost the meter does not know.

All others are rendered in a child process under the system's limits (``template_child.py``).
"""

from jinja2 import nodes

from estream.text.template_rewrite import COUNTED, JOINED, LOOKED, SLICED

_FILTERS = frozenset([
    "trim", "tojson", "length", "count", "upper", "lower", "string", "first", "last", "items", "default", "d", "int", "list",
    "capitalize", "title", "join", "replace", "safe", "abs", "select", "reject", "selectattr", "rejectattr", "map", "reverse",
    COUNTED, JOINED, SLICED, LOOKED,
])  # fmt: skip
_METHODS = frozenset([
    "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith", "items", "keys", "values", "get",
    "lower", "upper", "title", "capitalize", "replace", "join", "find", "rfind", "index", "count", "removeprefix",
    "removesuffix", "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower", "cycle", "changed",
])  # fmt: skip
#: Functions; macros are names too, and each call is a step. Lists of lists of lists can be made with ``dict`` alone.
_WILD_NAMES = frozenset(["dict"])
_WILD_NODES = (
    nodes.Mul,
    nodes.Pow,
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Extends,
    nodes.FilterBlock,
    nodes.MarkSafe,
    nodes.ScopedEvalContextModifier,
    nodes.EvalContextModifier,
)
_MAPPED = frozenset(["upper", "lower", "trim", "string", "length", "int", "tojson", "first", "last", "capitalize", "title"])


def is_tame(template: nodes.Template) -> bool:
    """Whether everything that a template does is known to be bounded by the meter."""
    joined = {id(each.node) for each in template.find_all(nodes.Filter) if each.name == JOINED}
    waiting: list[nodes.Node] = [template]
    while waiting:
        node = waiting.pop()
        # A tuple that is joined at once becomes text.
        if id(node) not in joined and not _is_tame(node):
            return False
        waiting += node.iter_child_nodes()
    return True


def _is_tame(node: nodes.Node) -> bool:
    if isinstance(node, _WILD_NODES):
        return False
    if isinstance(node, nodes.Filter):
        return node.name in _FILTERS and (node.name != "map" or _maps_plainly(node))
    if isinstance(node, nodes.Call):
        if isinstance(node.node, nodes.Getattr):
            return node.node.attr in _METHODS
        return isinstance(node.node, nodes.Name) and node.node.name not in _WILD_NAMES
    if isinstance(node, nodes.Name):
        return node.name not in _WILD_NAMES
    # Values in values in values are short to write and long to read.
    if isinstance(node, nodes.List | nodes.Tuple) and getattr(node, "ctx", "load") == "load":
        return all(isinstance(item, nodes.Const) for item in node.items)
    if isinstance(node, nodes.Dict):
        return all(isinstance(pair.value, nodes.Const) for pair in node.items)
    return True


def _maps_plainly(node: nodes.Filter) -> bool:
    if not node.args:
        return [pair.key for pair in node.kwargs] == ["attribute"]
    first = node.args[0]
    return len(node.args) == 1 and not node.kwargs and isinstance(first, nodes.Const) and first.value in _MAPPED
