"""Token ids for prompts of synthetic packages: random ones, or ones with topics where the package routes by topics.

A package with ``routing_skew`` in its manifest's ``source`` (``estream synth --routing-skew``) has experts that some topics
like, and the topic of a token follows from its id. A prompt speaks of a few topics, as prompts do.
"""

import numpy as np

from estream.package.manifest import Manifest

#: Topics of a vocabulary.
TOPICS = 31
#: Topics of a prompt; the second is drawn half as often as the first, the third a third as often, and so on.
TOPICS_OF_A_PROMPT = 5
#: The chance that a token stays with the topic of the one before.
STAY = 0.975


def routing_skew(manifest: Manifest) -> float:
    """How skewed a synthetic package routes; 0 for an even one and for a converted checkpoint."""
    return float(manifest.source.get("routing_skew", 0.0))


def topics_of(ids: np.ndarray, vocabulary: int) -> np.ndarray:
    """The topic of each token id, of the shape of ``ids``."""
    return ids % min(TOPICS, vocabulary)


def prompt_ids(manifest: Manifest, count: int, seed: int) -> np.ndarray:
    """Token ids for a prompt of a package, int32 [count]: topical ones where it routes by topics, else random ones. Equal
    seeds give equal ids, different seeds different topics.
    """
    draw = topical_ids if routing_skew(manifest) else random_ids
    return draw(count, seed, manifest.config.vocabulary)


def random_ids(count: int, seed: int, vocabulary: int) -> np.ndarray:
    """Return random token ids, int32 [count]; equal seeds give equal ids."""
    return np.random.default_rng(seed).integers(0, vocabulary, count, dtype=np.int32)


def topical_ids(count: int, seed: int, vocabulary: int) -> np.ndarray:
    """Return token ids of a few topics, int32 [count], in runs of about forty tokens; equal seeds give equal ids."""
    random = np.random.default_rng(seed)
    topics = min(TOPICS, vocabulary)
    chosen = random.choice(topics, min(TOPICS_OF_A_PROMPT, topics), replace=False)
    chances = 1.0 / np.arange(1, len(chosen) + 1)
    drawn = random.choice(chosen, count, p=chances / chances.sum())
    starts = random.random(count) >= STAY
    # The first token of each token's run.
    topic = drawn[np.maximum.accumulate(np.where(starts, np.arange(count), 0))]
    of_topic = (vocabulary - topic + topics - 1) // topics
    return (topic + topics * random.integers(0, of_topic)).astype(np.int32)
