"""The Qualcomm NPU (HTP): few compiled graphs with run-time weights."""
