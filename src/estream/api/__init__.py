"""What people call: load a model, prefill, plan. The only room that knows all others."""
