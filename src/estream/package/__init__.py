"""The package: a folder that holds a model in the order and layout that a sweep reads."""
