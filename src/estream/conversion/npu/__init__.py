"""Converting for the NPU: graph sizes, pages in the graphs' layout, compiled graphs."""
