"""Picking answers: each candidate's log-likelihood behind the question; the answers share the question's computing."""

import estream
from demo import package

QUESTION = "Description: HTTP server and reverse proxy\nSection:"
ANSWERS = [" web", " net", " games", " python"]

with estream.load(package()) as model:
    scores = model.score([(QUESTION, answer) for answer in ANSWERS], greedy=True)
    best = max(range(len(ANSWERS)), key=lambda i: scores[i].logprob)
    for i, (answer, score) in enumerate(zip(ANSWERS, scores, strict=True)):
        print(f"{'->' if i == best else '  '} {answer:<8} {score.logprob:8.3f}{' greedy' if score.greedy else ''}")
