"""The hardware-aware configurator: probes the machine, simulates the pipeline, chooses its configuration, explains it.

The paper's third contribution (arXiv 2609.06551), with the simulation running the engine's own sweep and pager.
"""
