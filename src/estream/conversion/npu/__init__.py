"""What a package for the NPU needs beside pages: graph sizes, relayout, compiled graphs."""
