"""The Qualcomm NPU (HTP): a few compiled graphs that take weights at run time."""
