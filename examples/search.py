"""Reranking for search: documents by how well they answer a query.

A reranker such as Qwen3-Reranker has its template built in and needs only ``model.rerank(query, documents)``. The demo model
was never taught to rerank; asked for a section, it can say how much more a description is "games" than "devel".
"""

import estream
from demo import package

TEMPLATE = estream.RerankTemplate("Description: {document}\n{query}:", yes=" games", no=" devel")
DOCUMENTS = [
    "Compiler for a small language with closures",
    "Real-time strategy game of ancient warfare",
    "Library to build user interfaces for games",
    "Play chess across 3 boards",
]

with estream.load(package()) as model:
    for each in model.rerank("Section", DOCUMENTS, template=TEMPLATE, top=3).results:
        print(f"{each.score:.3f} {each.document}")
