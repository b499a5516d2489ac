"""GGUF, llama.cpp's file format for models."""
