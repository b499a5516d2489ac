"""What happens to weights between the checkpoint and their codes."""
